// refuse: heddle: a stage that reports its memory (model::of_stage::reports_memory) needs `std::int64_t saved_bytes_per_slot() const`, deferred_bytes() and workspace_bytes(); one of them is missing or misspelled
// why: one of three members that come together is misspelled
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void workspace_bytes() = delete;
    std::int64_t work_space_bytes() const { return 0; }
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

// refuse: heddle: a stage that is trained needs `parameters()`, a range of entries with name, id, offset, count, counted and decay
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void parameters() const;
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

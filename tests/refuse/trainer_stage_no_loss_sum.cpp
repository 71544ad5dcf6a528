// refuse: heddle: a stage that is trained needs `double loss_sum(int slot) const`, the loss of the microbatch that last went forward through this slot, summed over its targets
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    double loss_sum(int) const = delete;
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

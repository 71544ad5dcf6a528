// refuse: heddle: a stage that is trained needs `void zero_gradients()`; backward adds to gradients
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void zero_gradients() = delete;
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

// refuse: heddle: a model that is trained needs `static auto layers_of(const config&, int part, int parts)`, what its stage
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
  };
  static void layers_of() = delete;
};
template void trainer_parts::train<model>(const trainer_parts::options&);

// refuse: heddle: a stage that is trained needs `using flat_weights = layout<mesh, ...>;`: its dual says over which axes gradients are summed
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    using flat_weights = void;
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

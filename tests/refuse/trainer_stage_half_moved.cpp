// refuse: heddle: a stage that moves its activations or computes them again (model::of_stage::moves_activations) needs layers_memory::settings, saved_layers(), recompute(int slot) and release(int slot); one of them is missing or misspelled
// why: activations are computed again by a member of another name
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void recompute(int) = delete;
    void compute_again(int) {}
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

// refuse: heddle: a stage that lends its memory (model::of_stage::lends_memory) needs lend_weights(row) or lend_gradients(row) together with flat_elements(), weights_stay(bool) with weights_written(), kept_weights() with release_kept_weights(), frozen_weights() with frozen_parameters(); one of a pair is missing or misspelled
// why: weights that are kept and never released
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void release_kept_weights() = delete;
  };
};
template void trainer_parts::train<model>(const trainer_parts::options&);

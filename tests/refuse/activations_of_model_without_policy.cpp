// refuse: heddle: this model's stage keeps its saved activations itself: it takes no policy for them; give it a third parameter (model::layer_memory), or leave the policy out
#include <heddle/model/gpt2.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
struct own : hd::model::gpt2<float> {
  template <class World, class Backend>
  using stage = hd::model::gpt2_stage<float, World, Backend>;
};
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 1>>, hd::activations::offload<>>;
static_assert(sizeof(hd::train::trainer<own, strategy>) > 0);

// refuse: heddle: a trainer's loss must be a sum (partial<plus>) over the axes that split samples, and along others a sum or one computation (identical)
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
struct careless : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using hd::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    using loss = hd::layout<mesh, hd::partial<hd::plus, hd::dp>>;  // each rank along tp differentiates a copy
  };
};
using trainer = hd::train::trainer<careless, hd::strategy<mesh>>;
bool has_it = sizeof(trainer) > 0;

// refuse: heddle: weights_in<W> is wider than the model's scalar, in which it computes: take a model of wider elements, or masters_in<M> for more bits in the optimizer
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh, hd::precision<hd::weights_in<double>>>;
void train(const hd::train::options<hd::model::gpt2_config>& options) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, strategy> trainer(world, options);
  });
}

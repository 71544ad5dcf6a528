// refuse: heddle: amount::first<N>: N layers are offloaded, not less than 0
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/train/activations/offload.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
namespace act = hd::activations;
using strategy = hd::strategy<mesh, act::offload<act::file_store, act::amount::first<-1>>>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

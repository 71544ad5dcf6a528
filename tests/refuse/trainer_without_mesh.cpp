// refuse: heddle: strategy<...> needs a mesh: strategy<mesh<axis<dp, 2>>, ...>
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<hd::zero<1>>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

// refuse: heddle: this is no model: a trainer takes a type such as model::gpt2<float>, which names scalar, config, batch and stage
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(int{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

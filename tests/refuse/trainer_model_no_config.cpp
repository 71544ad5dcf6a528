// refuse: heddle: a model that is trained needs `using config = ...;`, the settings that make one; options<config> holds them
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
struct number {
  using scalar = float;
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(number{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

// refuse: heddle: post_validation takes steps back, and the rule of this optimizer has no `undo`; give it one, or use post_validation_with_copy
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/save.hpp>

#include <cstdint>
#include <string>

namespace hd = heddle;
using strategy = hd::strategy<trainer_parts::mesh, hd::optimizers::lion, hd::post_validation>;
void train(const trainer_parts::options& o) {
  hd::launch<hd::threads>(trainer_parts::mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    hd::train::resume(trainer, "saves");
    trainer.run(trainer_parts::no_data{});
    hd::train::save(trainer, "saves");
  });
}

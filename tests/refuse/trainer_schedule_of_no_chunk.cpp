// refuse: heddle: a rank of a pipeline holds at least one stage; give a number of chunks of at least 1
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/schedule/generate/breadth_first.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::pp, 2>>;
using strategy = hd::strategy<mesh, hd::schedule::breadth_first<hd::microbatches<4>, 0>>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

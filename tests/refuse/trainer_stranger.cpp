// refuse: heddle: strategy<...> does not know this policy; it takes a mesh, a schedule, zero<N>, a compute backend
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/train/save.hpp>

namespace hd = heddle;
struct own_policy {};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh, own_policy, hd::zero<1>>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    hd::train::resume(trainer, "saves");
    trainer.run(
        trainer_parts::no_data{}, [](const hd::train::step_report&) {},
        [](auto& t) { hd::train::save(t, "saves"); });
  });
}

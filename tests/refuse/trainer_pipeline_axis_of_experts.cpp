// refuse: heddle: the mesh of this strategy has no axis of the name in pipeline_axis<...>; name one of the mesh's axes, or add the axis to the mesh
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using strategy = hd::strategy<hd::pipeline_axis<hd::ep>, mesh>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

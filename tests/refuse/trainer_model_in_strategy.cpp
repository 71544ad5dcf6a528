// refuse: heddle: strategy<...> does not know this policy; it takes a mesh, a schedule, zero<N>, a compute backend
#include "trainer_parts.hpp"

namespace hd = heddle;
using model = hd::model::gpt2<float>;
void train(const trainer_parts::options& o) {
  hd::launch<hd::threads>(trainer_parts::mesh{}, [&](auto& world) {
    hd::train::trainer<model, hd::strategy<trainer_parts::mesh, model>, decltype(world)> trainer(world, o);
    trainer.run(trainer_parts::no_data{});
  });
}

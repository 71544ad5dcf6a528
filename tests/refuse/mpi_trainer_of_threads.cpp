// refuse: heddle: this trainer is for a world of another type than it is given; write train::trainer<Model, Strategy, decltype(world)>
#include <heddle/comm/mpi.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using model = hd::model::gpt2<float>;

int main(int argc, char** argv) {
  const hd::train::options<model::config> options;
  return hd::launch<hd::mpi, mesh>(
      argc, argv, [&](auto& world) { hd::train::trainer<model, hd::strategy<mesh>> trainer(world, options); });
}

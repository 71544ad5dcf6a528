// refuse: heddle: branches are ranks along an axis that the trainer does not have: give it world.sub<...>() of the others
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/branches.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh>>;
void draw(trainer& t, hd::world<hd::threads, mesh>& world) { hd::train::branches<hd::dp>(t, world); }

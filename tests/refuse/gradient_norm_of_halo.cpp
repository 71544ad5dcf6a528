// refuse: heddle: a norm counts every element of a tensor once, but those of a halo are copies of what other ranks own
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::tp>, hd::identical<hd::dp>>;
double norm(const hd::sharded<float, 2, rows>& g, hd::world<hd::threads, mesh>& world) {
  return hd::squared_norm(world, g);
}

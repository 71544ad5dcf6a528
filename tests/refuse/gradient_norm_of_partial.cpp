// refuse: heddle: a norm squares its elements, and the square of a sum is not the sum of the squares
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using weight = hd::layout<mesh, hd::shard<1, hd::tp>>;
double norm(const hd::sharded<float, 2, hd::dual<weight>>& g, hd::world<hd::threads, mesh>& world) {
  return hd::squared_norm(world, g);
}

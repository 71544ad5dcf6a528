// refuse: heddle: an ordered reduction takes each element once, but those of a halo are copies of what other ranks own
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/ordered_sum.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::dp>>;
auto sum(const hd::sharded<double, 1, rows>& x, hd::world<hd::threads, mesh>& world) {
  return hd::ordered_reduce<hd::plus, 0>(x, world);
}

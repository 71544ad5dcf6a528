// refuse: heddle: apply<operator>: the backend's kernels are for the memory of its own space
#include <heddle/comm/threads.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/compute/value_and_gradient.hpp>

namespace hd = heddle;
namespace op = heddle::op;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, hd::dp>>;
auto y(hd::compute::kokkos<Kokkos::Serial>& b, hd::world<hd::threads, mesh>& w, const hd::sharded<float, 1, rows>& x) {
  return hd::apply<op::gelu>(b, w, x);
}

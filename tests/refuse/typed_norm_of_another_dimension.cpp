// refuse: heddle: apply<operator>: the kernels take operands of other numbers of dimensions
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 3, rows>& x) {
  return hd::apply<hd::op::layer_norm<1>>(backend, w, x);
}

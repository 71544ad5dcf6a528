// refuse: heddle: apply<operator>: the operands have other element types than the kernels take
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, rows>& y,
       const hd::sharded<float, 1, rows>& labels) {
  return hd::apply<hd::op::cross_entropy<1>>(backend, w, y, labels);
}

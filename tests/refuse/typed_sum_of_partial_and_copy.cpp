// refuse: heddle: propagate: one term of a sum holds partial values over an axis and another does not
// and: elementwise_linear
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using sum = hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, rows>& stream,
       const hd::sharded<float, 2, sum>& y) {
  return hd::apply<hd::op::add>(backend, w, stream, y);
}

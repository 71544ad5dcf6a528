// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
// and: softmax<1>
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using columns = hd::layout<mesh, hd::shard<1, tp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, columns>& y) {
  return hd::apply<hd::op::softmax<1>>(backend, w, y);
}

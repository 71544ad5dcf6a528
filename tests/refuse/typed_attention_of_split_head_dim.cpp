// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
// and: attention
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using split = hd::layout<mesh, hd::shard<0, dp>, hd::shard<3, tp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 4, split>& x) {
  return hd::apply<hd::op::attention>(backend, w, x, x, x);
}

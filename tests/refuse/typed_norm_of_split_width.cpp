// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
// and: rms_norm<2>
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using stream = hd::layout<mesh, hd::shard<0, dp>, hd::shard<2, tp>>;
using weight = hd::layout<mesh, hd::shard<0, tp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 3, stream>& x,
       const hd::sharded<float, 1, weight>& g) {
  return hd::apply<hd::op::rms_norm<2>>(backend, w, x, g);
}

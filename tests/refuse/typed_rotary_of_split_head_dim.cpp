// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
// and: rotary<
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using elements = hd::layout<mesh, hd::shard<3, hd::tp>>;
auto f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& w, const hd::sharded<float, 4, elements>& q) {
  return hd::apply<hd::op::rotary<>>(backend, w, q);
}

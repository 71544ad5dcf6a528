// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
// and: top_k_ids<1, 2>
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::ep, 2>>;
using experts = hd::layout<mesh, hd::shard<1, hd::ep>>;
auto f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& w, const hd::sharded<float, 2, experts>& logits) {
  return hd::apply<hd::op::top_k_ids<1, 2>>(backend, w, logits);
}

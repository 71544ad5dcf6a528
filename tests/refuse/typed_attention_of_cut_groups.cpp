// refuse: heddle: propagate: an axis splits a letter in one operand but not in the other that has it, so their parts do not match
// and: attention
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

// Query heads are split and the heads of keys and values that they share are not: a rank's query heads are inside a group.
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using heads = hd::layout<mesh, hd::shard<1, hd::tp>>;
using copies = hd::layout<mesh>;
auto f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& w, const hd::sharded<float, 4, heads>& q,
       const hd::sharded<float, 4, copies>& kv) {
  return hd::apply<hd::op::attention>(backend, w, q, kv, kv);
}

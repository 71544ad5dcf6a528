// refuse: heddle: propagate: an operator that is not linear in an operand would compute with partial values
// and: cross_entropy<1>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using logits = hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, logits>& y,
       const hd::sharded<std::int32_t, 1, rows>& labels) {
  return hd::apply<hd::op::cross_entropy<1>>(backend, w, y, labels);
}

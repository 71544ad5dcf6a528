// refuse: heddle: propagate: an operator that is not linear in an operand would compute with partial values
// and: gelu
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
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, sum>& y,
       const hd::sharded<float, 2, rows>& stream) {
  const auto h = hd::apply<hd::op::gelu>(backend, w, y);
  return hd::apply<hd::op::add>(backend, w, stream, h);  // fits what the repair gives, so this is no second error
}

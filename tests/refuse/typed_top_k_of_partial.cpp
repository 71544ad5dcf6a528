// refuse: heddle: propagate: an operator that is not linear in an operand would compute with partial values
// and: top_k_weights<1, 2
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using contributions = hd::layout<mesh, hd::partial<hd::plus, hd::tp>>;
auto f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& w,
       const hd::sharded<float, 2, contributions>& logits) {
  return hd::apply<hd::op::top_k_weights<1, 2>>(backend, w, logits);
}

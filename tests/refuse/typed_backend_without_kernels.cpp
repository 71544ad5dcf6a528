// refuse: heddle: apply<operator>: the backend lacks the kernels of this operator
// and: adder
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
struct adder {
  using kind = hd::compute::backend_kind;
};
using rows = hd::layout<mesh, hd::shard<0, dp>>;
auto f(adder& backend, world& w, const hd::sharded<float, 2, rows>& x) {
  return hd::apply<hd::op::gelu>(backend, w, x);
}

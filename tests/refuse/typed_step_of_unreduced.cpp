// refuse: heddle: adamw_step: the gradient is a sum over an axis that nobody has made yet
// and: redistribute_to<
// and: dp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/adamw_parameter.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using weights = hd::layout<mesh, hd::shard<1, tp>>;
void f(hd::compute::host<>& backend, world& w, hd::sharded<float, 2, weights>& x,
       const hd::sharded<float, 2, hd::dual<weights>>& gradient, hd::adamw_moments<hd::sharded<float, 2, weights>>& m) {
  hd::adamw_step(backend, w, x, gradient, m, {.lr = 1e-3});
}

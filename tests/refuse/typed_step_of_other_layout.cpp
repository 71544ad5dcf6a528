// refuse: heddle: adamw_step: the gradient is laid out otherwise than the weights
// and: redistribute_to<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/adamw_parameter.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using weights = hd::layout<mesh, hd::shard<1, tp>>;
using other = hd::layout<mesh, hd::shard<0, tp>>;
void f(hd::compute::host<>& backend, world& w, hd::sharded<float, 2, weights>& x,
       const hd::sharded<float, 2, other>& gradient, hd::adamw_moments<hd::sharded<float, 2, weights>>& m) {
  hd::adamw_step(backend, w, x, gradient, m, {.lr = 1e-3});
}

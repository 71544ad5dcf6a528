// refuse: heddle: adamw_step: the moments are laid out otherwise than the weights
// and: zero_moments(weights)
#include <heddle/comm/threads.hpp>
#include <heddle/compute/adamw_parameter.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using weights = hd::layout<mesh, hd::shard<1, tp>>;
using stored = hd::layout<mesh, hd::shard<1, tp>, hd::shard<0, dp>>;
void f(hd::compute::host<>& backend, world& w, hd::sharded<float, 2, weights>& x,
       const hd::sharded<float, 2, weights>& gradient, hd::adamw_moments<hd::sharded<float, 2, stored>>& m) {
  hd::adamw_step(backend, w, x, gradient, m, {.lr = 1e-3});
}

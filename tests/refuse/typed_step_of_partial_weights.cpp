// refuse: heddle: adamw_step: the weights are partial
#include <heddle/comm/threads.hpp>
#include <heddle/compute/adamw_parameter.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using sum = hd::layout<mesh, hd::partial<hd::plus, tp>>;
void f(hd::compute::host<>& backend, world& w, hd::sharded<float, 2, sum>& x,
       const hd::sharded<float, 2, hd::dual<sum>>& gradient, hd::adamw_moments<hd::sharded<float, 2, sum>>& m) {
  hd::adamw_step(backend, w, x, gradient, m, {.lr = 1e-3});
}

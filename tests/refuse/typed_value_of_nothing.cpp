// refuse: heddle: vjp, value_and_gradient: the function must return an expression
#include <heddle/comm/threads.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, rows>& x) {
  return hd::value_and_gradient(backend, w, [](auto) { return 1.0f; }, x);
}

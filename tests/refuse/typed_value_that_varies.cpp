// refuse: heddle: vjp, value_and_gradient: each rank along an axis has a value of its own
#include <heddle/comm/threads.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using own = hd::layout<mesh, hd::varying<tp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, own>& x) {
  return hd::value_and_gradient(backend, w, [](auto a) { return hd::sum(hd::apply<hd::op::gelu>(a)); }, x);
}

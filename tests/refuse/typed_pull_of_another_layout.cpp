// refuse: heddle: vjp: pull takes the gradient by the value in the dual of the value's layout
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
using copies = hd::layout<mesh>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, rows>& x,
       hd::sharded<float, 2, copies>&& dy) {
  auto [value, pull] = hd::vjp(backend, w, [](auto a) { return hd::apply<hd::op::gelu>(a); }, x);
  return pull(std::move(dy));
}

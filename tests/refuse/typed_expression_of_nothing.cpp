// refuse: heddle: vjp, value_and_gradient: the function must return an expression
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>

namespace hd = heddle;
namespace op = heddle::op;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, hd::dp>>;
using world = hd::world<hd::threads, mesh>;
using tensor = hd::sharded<float, 1, rows>;
auto y(hd::compute::host<>& b, world& w, const tensor& x) {
  return hd::value_and_gradient(b, w, [](auto x) { hd::sum(x); }, x);
}

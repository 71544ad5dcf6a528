// refuse: heddle: apply<operator>: in the function of value_and_gradient, operands are its arguments
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>

namespace hd = heddle;
namespace op = heddle::op;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, hd::dp>>;
using world = hd::world<hd::threads, mesh>;
using tensor = hd::sharded<float, 1, rows>;
auto y(hd::compute::host<>& b, world& w, const tensor& x, const tensor& t) {
  return hd::value_and_gradient(b, w, [&](auto x) { return hd::sum(hd::apply<op::multiply>(x, t)); }, x);
}

// refuse: heddle: vjp, value_and_gradient: an operand is in another memory space than the host's
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/testing/checked_memory.hpp>

namespace hd = heddle;
namespace op = heddle::op;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, hd::dp>>;
using world = hd::world<hd::threads, mesh>;
using elsewhere = hd::sharded<float, 1, rows, hd::testing::checked_memory>;
auto y(hd::compute::host<>& b, world& w, const elsewhere& x) {
  return hd::value_and_gradient(b, w, [](auto x) { return hd::sum(x); }, x);
}

// refuse: heddle: apply<operator>: an operand is no tensor
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>

namespace hd = heddle;
namespace op = heddle::op;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, hd::dp>>;
using world = hd::world<hd::threads, mesh>;
auto y(hd::compute::host<>& b, world& w) {
  return hd::apply<op::gelu>(b, w, 3.0);
}

// refuse: heddle: propagate: one operand holds partial values over an axis that splits another operand
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using sum = hd::layout<mesh, hd::partial<hd::plus, tp>>;
using column = hd::layout<mesh, hd::shard<1, tp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, sum>& x,
       const hd::sharded<float, 2, column>& v) {
  return hd::value_and_gradient(
      backend, w, [](auto a, auto b) { return hd::mean(hd::einsum<"bi,io->bo">(a, b)); }, x, v);
}

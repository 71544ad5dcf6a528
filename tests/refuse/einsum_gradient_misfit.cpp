// refuse: heddle: propagate: one operand holds partial values over an axis that splits another operand
#include <heddle/comm/threads.hpp>
#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using sum = hd::layout<mesh, hd::partial<hd::plus, hd::tp>>;
using column = hd::layout<mesh, hd::shard<1, hd::tp>>;
void f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& world, hd::sharded<float, 2, sum>& x,
       hd::sharded<float, 2, column>& w, hd::sharded<float, 2, column>& dy) {
  const auto g = hd::compute::einsum_gradient<"bi,io->bo", 1>(backend, world, dy, x, w);
  static_cast<void>(g.elements());
}

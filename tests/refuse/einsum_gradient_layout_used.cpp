// refuse: the gradient of a result has the dual of the result's layout, and this one has another
#include <heddle/comm/threads.hpp>
#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using column = hd::layout<mesh, hd::shard<1, hd::tp>>;
void f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& world, hd::sharded<float, 2, hd::layout<mesh>>& x,
       hd::sharded<float, 2, column>& w, hd::sharded<float, 2, hd::layout<mesh>>& whole_dy) {
  auto g = hd::compute::einsum_gradient<"bi,io->bo", 1>(backend, world, whole_dy, x, w);
  const auto whole = hd::redistribute<hd::layout<mesh>>(g, world);
  static_cast<void>(whole.elements());
}

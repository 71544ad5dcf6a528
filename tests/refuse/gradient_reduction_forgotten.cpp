// refuse: the gradient is a sum over an axis along which the parameter is not replicated, so a reduction was forgotten
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using norm_weight = hd::layout<mesh, hd::identical<hd::tp>>;
// Under sequence parallelism each rank along tp sees other tokens: the gradient is a sum over tp too.
using gradient = hd::layout<mesh, hd::partial<hd::plus, hd::dp, hd::tp>>;
auto settle(hd::sharded<float, 1, gradient> g, hd::world<hd::threads, mesh>& world) {
  return hd::settle_gradient<norm_weight>(std::move(g), world);
}

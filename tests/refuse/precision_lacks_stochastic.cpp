// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them. Give the backend this facet (compute/kernels.hpp), or take a backend that has it
// and: stochastic_cast_facet
#include <heddle/compute/host/host.hpp>
#include <heddle/train/mixed_optimizer.hpp>

namespace hd = heddle;
// Rounds to the nearest only.
struct nearest : hd::compute::host<> {
  using hd::compute::host<>::cast;
  void cast(std::span<const float>, std::span<hd::bf16>, const hd::compute::stochastic&) = delete;
};
using precision = hd::precision<hd::weights_in<hd::bf16, hd::rounding::stochastic>>;
void step(hd::train::mixed_optimizer<float, hd::zero<0>, precision>& optimizer, nearest& backend) {
  optimizer.update(backend, {}, {}, {}, 1e-3, 1, 1.0);
}

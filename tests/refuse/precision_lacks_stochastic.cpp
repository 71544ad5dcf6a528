// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them. Give the backend this facet (its operations are in compute/ops/), or take a backend that has it
// and: stochastic_cast_facet
#include <heddle/compute/host/host.hpp>
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
// Rounds to the nearest only.
struct rounds_to_nearest : hd::compute::team {};
void body(hd::compute::ops::stochastic_cast, rounds_to_nearest&, std::int64_t, const float*, hd::bf16*,
          const hd::compute::stochastic&) = delete;
struct nearest : hd::compute::host<> {
  rounds_to_nearest& launcher();
};
using precision = hd::precision<hd::weights_in<hd::bf16, hd::rounding::stochastic>>;
void step(hd::train::sharded_optimizer<float, hd::optimizers::adamw, precision, hd::zero<0>>& optimizer, nearest& backend) {
  optimizer.update(backend, {}, {}, {}, 1e-3, 1, 1.0);
}

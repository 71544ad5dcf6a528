// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them
// and: layer_needs<
// and: reversible_optimizer_facet, steps_only,
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;

struct steps_only {};
void body(hd::compute::ops::adamw, steps_only&, std::int64_t, float*, const float*, float*, float*,
          const hd::compute::adamw_step&);

void use(hd::train::optimizer<float, hd::zero<0>>& optimizer, steps_only& backend, std::span<float> row) {
  optimizer.update(backend, row, row, {}, 1e-3, 1, 1.0);
  optimizer.undo(backend, row, row, {}, 1e-3, 1, 1.0);
}

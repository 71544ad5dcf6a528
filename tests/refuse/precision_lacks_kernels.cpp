// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them. Give the backend this facet (its operations are in compute/ops/), or take a backend that has it
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
struct bare {};
void step(hd::train::sharded_optimizer<float, hd::optimizers::adamw, hd::precision<hd::weights_in<hd::bf16>>, hd::zero<0>>& optimizer, bare& backend) {
  optimizer.update(backend, {}, {}, {}, 1e-3, 1, 1.0);
}

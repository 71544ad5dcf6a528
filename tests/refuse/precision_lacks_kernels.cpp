// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them. Give the backend this facet (compute/kernels.hpp), or take a backend that has it
#include <heddle/train/mixed_optimizer.hpp>

namespace hd = heddle;
struct bare {};
void step(hd::train::mixed_optimizer<float, hd::zero<0>, hd::precision<hd::weights_in<hd::bf16>>>& optimizer, bare& backend) {
  optimizer.update(backend, {}, {}, {}, 1e-3, 1, 1.0);
}

#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/strategy.hpp>

#include <vector>

namespace planned {
namespace hd = heddle;
struct rows {};
using scalar = float;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>, hd::axis<hd::tp, 1>, hd::axis<rows, 1>>;
using strategy = hd::strategy<mesh, hd::schedule::interleaved<hd::microbatches<4>, 2>, hd::zero<2>, hd::activations::recompute<>, hd::precision<hd::products_in<hd::bf16>>>;

/// What is no type.
template <class Options>
void apply(Options& options) {
  options.microbatches = 4;
  options.recompute = "first 2,head.logits";
  options.layers_per_stage = {2,1,1,2};
}
/// For `world.renumbered`.
inline const std::vector<int> order{3,2,1,0};
}  // namespace planned

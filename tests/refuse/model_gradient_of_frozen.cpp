// refuse: heddle: b.gradient(tag{}): this parameter is frozen and has no gradient
// and: bias
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/lora.hpp>

#include <type_traits>

namespace hd = heddle;
namespace md = heddle::model;
namespace ly = heddle::model::layers;

// Trains the weight of a layer and freezes its bias.
struct weights_alone {
  template <class Parameter>
  static constexpr bool trains = std::is_same_v<typename Parameter::tag, ly::weight>;
};
struct world {
  template <class... Tags>
  int along_if() const;
};
using kernels = hd::compute::host<>;
using layouts = md::layouts<hd::mesh<>, md::megatron<>>;
using run = ly::layer_run<float, layouts, kernels, world, ly::no_cache, weights_alone>;
using layer = ly::linear<md::dims<hd::dim::width>, md::dims<hd::dim::ffn>>;

void use(const ly::call<layer, run>& b, hd::matrix_view<const float> x, hd::matrix_view<const float> dy) {
  b.backward_weight(x, dy);
}

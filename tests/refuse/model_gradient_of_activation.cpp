// refuse: heddle: b.gradient(tag{}): the layer lists no parameter with this tag
// and: hidden
#include <heddle/model/layers/feed_forward.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, hd::model::megatron<>>;
struct kernels {};
struct world {};
using run = ly::layer_run<float, layouts, kernels, world>;
struct eager : ly::leaf {
  constexpr auto activations() const {
    return ly::list(ly::activation<ly::hidden, ly::life::until_input, hd::model::dims<hd::dim::ffn>>{{8}});
  }
};
void use(const ly::call<eager, run>& b) {
  static_cast<void>(b.gradient(ly::hidden{}));
}

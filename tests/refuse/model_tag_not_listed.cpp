// refuse: heddle: b[tag{}]: the layer lists no parameter and no activation with this tag
// and: gate
#include <heddle/model/layers/feed_forward.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, hd::model::megatron<>>;
struct kernels {};
struct world {};
using run = ly::layer_run<float, layouts, kernels, world>;
struct forgetful : ly::leaf {
  constexpr auto parameters() const {
    return ly::list(ly::parameter<ly::weight, hd::model::dims<hd::dim::width>>{"weight", {8}});
  }
};
void use(const ly::call<forgetful, run>& b) {
  static_cast<void>(b[ly::gate{}]);
}

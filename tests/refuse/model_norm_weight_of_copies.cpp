// refuse: heddle: the gradient of a parameter must be a sum over the axes that split samples and over no other
#include <heddle/model/flat_layout.hpp>
#include <heddle/model/layers/norms.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
// A norm's weight that the ranks along tp use each on its own heads: who sums their gradients?
struct norm_of_heads : ly::leaf {
  constexpr auto parameters() const {
    using weight = ly::parameter<ly::weight, hd::model::dims<hd::dim::head_size>, hd::model::dims<>,
                                 hd::model::dims<hd::dim::heads>>;
    return ly::list(weight{"weight", {8}, 0, 1});
  }
};
static_assert(hd::model::detail::sums_over_rows<hd::model::layouts<mesh, hd::model::megatron<>>, norm_of_heads>::value);

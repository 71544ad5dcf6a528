// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
// and: rms_norm
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/norms.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using how = hd::sharding<hd::dim::split<hd::dim::width, hd::tp>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, how>;
struct world {};
using run = ly::layer_run<float, layouts, hd::compute::host<>, world>;
using call = ly::call<ly::rms_norm<>, run>;
void use(const call& b, call::const_view x, call::view y) {
  b.forward(x, y);
}

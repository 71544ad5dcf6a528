// refuse: heddle: squared_error compares whole rows of outputs: leave their dimension out of the sharding
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/readouts.hpp>

#include <span>

namespace hd = heddle;
namespace ly = hd::model::layers;
using how = hd::sharding<hd::dim::split<hd::dim::outputs, hd::tp>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, how>;
struct world {};
using run = ly::layer_run<float, layouts, hd::compute::host<>, world>;
using readout = ly::linear<hd::model::dims<hd::dim::width>, hd::model::dims<hd::dim::outputs>>;
using call = ly::call<ly::squared_error<readout>, run>;
double use(const call& b, call::const_view x, std::span<const float> y) {
  return b.forward(x, y);
}

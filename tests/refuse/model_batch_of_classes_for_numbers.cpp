// refuse: heddle: squared_error compares numbers (model::pair_batch<T>), language_head takes classes
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train/trainer.hpp>

#include <cstdint>

namespace hd = heddle;
namespace dim = hd::dim;
using hd::model::dims;
using namespace hd::model::layers;
using in_layer = linear<dims<dim::features>, dims<dim::width>>;
using out_layer = linear<dims<dim::width>, dims<dim::outputs>>;
struct model
    : hd::model::described<model, float, hd::model::pair_batch<float, std::int32_t>, hd::model::network_config> {
  static auto describe(const config& c) {
    return network(in_layer("in", {c.inputs}, {c.width}), "block.", c.layers, layer_norm<>("norm", c.width, 1e-5),
                   squared_error(out_layer("out", {c.width}, {c.outputs})));
  }
};
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>>;
static_assert(sizeof(hd::train::trainer<model, strategy>) > 0);

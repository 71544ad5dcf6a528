// A small network on pairs, of residual blocks with a norm, for tests of trainers.
#pragma once

#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>

namespace train_test {

template <class T>
struct small_network : heddle::model::described<small_network<T>, T, heddle::model::pair_batch<T>, heddle::model::network_config> {
  static auto describe(const heddle::model::network_config& c) {
    using namespace heddle::model::layers;
    using heddle::model::dims, heddle::model::by_inputs;
    namespace dim = heddle::dim;
    using in = linear<dims<dim::features>, dims<dim::width>>;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    using down = linear<dims<dim::ffn>, dims<dim::width>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    return heddle::model::layers::network(in("in", {c.inputs}, {c.width}, by_inputs(c.inputs)), "block.", c.layers,
                                      residual(layer_norm<>("norm", c.width, 1e-5),
                                               gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, by_inputs(c.width)),
                                                        down("down", {c.hidden}, {c.width}, by_inputs(c.hidden)))),
                                      squared_error(out("out", {c.width}, {c.outputs}, by_inputs(c.width))));
  }
};

}  // namespace train_test

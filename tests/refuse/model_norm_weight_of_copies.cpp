// refuse: heddle: a trainer sums gradients over dp and nothing else, but the gradient of a parameter in this layout is a sum over
#include <heddle/model/gpt2_layers.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
struct careless : hd::model::tensor_parallel<mesh> {
  using whole = hd::layout<mesh>;  // norms' weights used by each rank along tp on its own: who sums their gradients?
};
hd::model::gpt2_layers<float, careless> layers({}, mesh{}, 0, {});

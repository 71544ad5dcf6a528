// refuse: heddle: graph_layer: the operator claims to be elementwise, but rows of neighbours are folded whole, with gradients
#include <heddle/core/monoid.hpp>
#include <heddle/model/graph_layer.hpp>

using layer = heddle::model::graph_layer<float, heddle::plus>;
static_assert(sizeof(layer) > 0);

// refuse: heddle: precision<products_in<P>> needs #include <heddle/train/products.hpp>
// and: precision_has_header<
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/strategy.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>>;
using strategy = heddle::strategy<mesh, heddle::precision<heddle::products_in<heddle::bf16>>>;
static_assert(sizeof(strategy) > 0);

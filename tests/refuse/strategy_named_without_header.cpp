// refuse: heddle: strategy<..., schedule::named> needs #include <heddle/schedule/named.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/strategy.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>>;
using strategy = heddle::strategy<mesh, heddle::schedule::named>;
static_assert(sizeof(strategy) > 0);

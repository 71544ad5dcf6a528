// refuse: heddle: fold: axes that both meshes have, such as pp, must come first in both
#include <heddle/mesh/folding.hpp>

namespace hd = heddle;
// Stages are consecutive ranks for attention, and every other rank for experts.
using attention = hd::mesh<hd::axis<hd::pp, 2>, hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using experts = hd::mesh<hd::axis<hd::ep, 4>, hd::axis<hd::pp, 2>>;
hd::folded_mesh<attention, experts> ranks;

// refuse: heddle: fold: two meshes over the same ranks must have as many ranks
#include <heddle/mesh/folding.hpp>

namespace hd = heddle;
using attention = hd::mesh<hd::axis<hd::dp, 4>, hd::axis<hd::tp, 2>>;
using experts = hd::mesh<hd::axis<hd::ep, 4>>;
hd::folded_mesh<attention, experts> ranks;

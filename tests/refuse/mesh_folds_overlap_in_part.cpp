// refuse: heddle: fold: groups of the two meshes overlap in part
#include <heddle/mesh/folding.hpp>

namespace hd = heddle;
struct etp {};
// Pairs of consecutive ranks for attention and triples for experts.
using attention = hd::mesh<hd::axis<hd::dp, 3>, hd::axis<hd::tp, 2>>;
using experts = hd::mesh<hd::axis<hd::ep, 2>, hd::axis<etp, 3>>;
hd::folded_mesh<attention, experts> ranks;

// refuse: heddle: a layout names an axis that its mesh does not have; name one of the mesh's axes, or add the axis to the mesh
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<0, hd::pp>>;

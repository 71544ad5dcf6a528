// refuse: heddle: the mesh has no axis with this tag; name one of its axes, or add it to the mesh
#include <heddle/mesh/mesh.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::pp, 2>>;
int coordinate = mesh::coordinate<heddle::tp>(0);

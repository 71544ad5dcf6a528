// refuse: heddle: mesh<...>: the mesh has more ranks than an int counts
#include <heddle/mesh/mesh.hpp>

namespace hd = heddle;
constexpr int ranks = hd::mesh<hd::axis<hd::dp, 100000>, hd::axis<hd::tp, 100000>>::size();

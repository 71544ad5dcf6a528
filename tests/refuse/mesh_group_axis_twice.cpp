// refuse: heddle: a group of ranks is asked for along one axis twice; name each axis once
#include <heddle/mesh/mesh.hpp>

namespace hd = heddle;
int main() { return hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>::group_size<hd::tp, hd::tp>(); }

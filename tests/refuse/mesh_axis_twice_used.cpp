// refuse: heddle: a mesh names one axis twice; give each axis its own tag type (struct my_axis {};)
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, hd::dp>>;
int ranks = mesh{}.size();

// refuse: heddle: halo<dim, width, axes...>: the width must not be negative; it counts elements on either side
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using bad = hd::layout<mesh, hd::halo<0, -1, hd::dp>>;

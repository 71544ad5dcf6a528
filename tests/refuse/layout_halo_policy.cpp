// refuse: name a policy with intervals, such as split::balanced, ceil or ragged
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using bad = hd::layout<mesh, hd::halo<0, 1, hd::split::zigzag, hd::dp>>;

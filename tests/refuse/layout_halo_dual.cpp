// refuse: heddle: dual<layout>: a halo holds copies of what other ranks own, whose gradients no layout sums; take the dual of without_halo<layout>
#include <heddle/layout/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using bad = hd::dual<hd::layout<mesh, hd::halo<0, 1, hd::dp>>>;

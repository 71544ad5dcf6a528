// refuse: heddle: the formula of an elementwise operator sums over a letter
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::add_of<"bh,h->b">, hd::layout<mesh>, hd::layout<mesh>>;

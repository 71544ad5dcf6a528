// refuse: heddle: propagate<formula, layouts...>: the formula has another number of operands than layouts were given
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::softmax<0>, hd::layout<mesh>, hd::layout<mesh>>;

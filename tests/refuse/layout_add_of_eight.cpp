// refuse: heddle: propagate: one operand holds partial values over an axis that splits another operand
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using a = hd::layout<mesh, hd::shard<0, tp>>;
using b = hd::layout<mesh, hd::shard<1, tp>>;
using c = hd::layout<mesh, hd::shard<2, hd::split::zigzag, tp>>;
using p = hd::layout<mesh, hd::partial<hd::plus, tp>>;
using l = hd::propagate_through<hd::op::add, a, b, c, p, hd::layout<mesh>, a, b, c>;

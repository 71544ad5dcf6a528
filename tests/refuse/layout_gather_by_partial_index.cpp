// refuse: heddle: propagate: an operator that is not linear in an operand would compute with partial values
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using sum = hd::layout<mesh, hd::partial<hd::plus, tp>>;
using l = hd::propagate_through<hd::op::gather<0>, sum, sum>;

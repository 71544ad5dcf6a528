// refuse: heddle: propagate: the operator does not commute with the operator of a partial operand
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::monotone, hd::layout<mesh, hd::partial<hd::plus, tp>>>;

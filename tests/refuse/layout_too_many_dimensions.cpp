// refuse: lower the number in shard<dim, ...> or add letters to the operand (operators take at most 12 dimensions)
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::elementwise, hd::layout<mesh, hd::shard<13, tp>>>;

// refuse: heddle: propagate: an operand varies over an axis and another is split, partial or identical over it
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using ragged = hd::layout<mesh, hd::varying<tp>>;
using l = hd::propagate_through<hd::op::multiply, ragged, hd::layout<mesh, hd::shard<0, tp>>>;

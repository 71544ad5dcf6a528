// refuse: heddle: propagate: two operands split one letter under different split policies
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using queries = hd::layout<mesh, hd::shard<0, hd::split::zigzag, tp>>;
using l = hd::propagate_through<hd::op::add, queries, hd::layout<mesh, hd::shard<0, tp>>>;

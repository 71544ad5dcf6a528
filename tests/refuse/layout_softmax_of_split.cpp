// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::softmax<1>, hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>>;

// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using keys = hd::layout<mesh, hd::shard<2, tp>>;
using l = hd::propagate_through<hd::op::concat<2>, keys, keys>;

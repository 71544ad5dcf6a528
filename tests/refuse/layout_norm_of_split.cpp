// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using hidden = hd::layout<mesh, hd::shard<2, tp>>;
using l = hd::propagate_through<hd::op::rms_norm<2>, hidden, hd::layout<mesh, hd::shard<0, tp>>>;

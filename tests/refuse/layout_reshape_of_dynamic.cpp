// refuse: heddle: op::reshape<from, to>: all extents must be static
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using from = hd::shape<hd::dynamic, 8>;
using l = hd::propagate_through<hd::op::reshape<from, hd::shape<96>>, hd::layout<mesh, hd::shard<0, tp>>>;

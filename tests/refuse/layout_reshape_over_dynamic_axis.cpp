// refuse: heddle: propagate: a reshape joins or parts a dimension split over an axis whose extent is known only at start-up
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using some = hd::mesh<hd::axis<dp, 2>, hd::axis<tp>>;
using l = hd::propagate_through<hd::op::reshape<hd::shape<12>, hd::shape<4, 3>>, hd::layout<some, hd::shard<0, tp>>>;

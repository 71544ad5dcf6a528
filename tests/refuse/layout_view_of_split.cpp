// refuse: heddle: propagate: a reshape keeps a split only on the leading part that both shapes share
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using four = hd::mesh<hd::axis<tp, 4>>;
using l =
    hd::propagate_through<hd::op::reshape<hd::shape<12, 8>, hd::shape<16, 6>>, hd::layout<four, hd::shard<1, tp>>>;

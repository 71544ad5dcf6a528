// refuse: heddle: propagate: a reshape keeps a split only where each part is one interval
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using blocks = hd::layout<mesh, hd::shard<0, hd::split::block_cyclic<2>, tp>>;
using l = hd::propagate_through<hd::op::reshape<hd::shape<12>, hd::shape<4, 3>>, blocks>;

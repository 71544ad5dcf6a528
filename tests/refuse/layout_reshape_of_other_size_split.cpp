// refuse: heddle: op::reshape<from, to>: both shapes must have the same number of elements
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using row = hd::layout<mesh, hd::shard<0, tp>>;
using l = hd::propagate_through<hd::op::reshape<hd::shape<12, 8>, hd::shape<95>>, row>;

// refuse: heddle: op::reshape<from, to>: both shapes must have the same number of elements
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::reshape<hd::shape<12>, hd::shape<4, 4>>, hd::layout<mesh>>;

// refuse: heddle: an operator names a dimension that is negative, beyond 11 or named twice
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using whole = hd::layout<mesh>;
using l = hd::propagate_through<hd::op::scatter<-1>, whole, whole, whole>;

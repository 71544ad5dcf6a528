// refuse: heddle: propagated_through: the operator has several results
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
auto l = hd::propagated_through<hd::op::top_k<1>>(hd::layout<mesh>{});

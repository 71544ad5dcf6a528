// refuse: heddle: propagate<formula, layouts...>: the operands live on different meshes
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
const hd::layout<some> a{some{2, 2}};
const auto l = hd::propagated<"bi,io->bo">(a, hd::layout<mesh>{});

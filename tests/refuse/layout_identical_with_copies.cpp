// refuse: heddle: propagate: an operand is identical over an axis and another is not
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using weight = hd::layout<mesh, hd::identical<tp>>;
using l = hd::propagate<"bi,io->bo", hd::layout<mesh, hd::shard<0, dp>>, weight>;

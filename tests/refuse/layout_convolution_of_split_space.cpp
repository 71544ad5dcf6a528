// refuse: heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it; redistribute the operand
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::cp, hd::dp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 2>>;
using images = hd::layout<mesh, hd::shard<0, dp>, hd::shard<2, cp>>;
using kernels = hd::layout<mesh>;
using wrong = hd::propagate_through<hd::op::convolution<2>, images, kernels>;

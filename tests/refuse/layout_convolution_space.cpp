// refuse: heddle: op::convolution<dimensions of space>: give 1, 2 or 3
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using images = hd::layout<mesh, hd::shard<0, hd::dp>>;
using wrong = hd::propagate_through<hd::op::convolution<4>, images, hd::layout<mesh>>;

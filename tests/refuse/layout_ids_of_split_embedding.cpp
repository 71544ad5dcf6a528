// refuse: heddle: propagate: one mesh axis splits two different letters
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, tp>>;
using l = hd::propagate_through<hd::op::embedding<1>, rows, rows>;

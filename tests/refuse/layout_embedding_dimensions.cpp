// refuse: heddle: op::embedding<dimensions of the ids>: ids have 0 to 11 dimensions
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::embedding<19>, hd::layout<mesh>, hd::layout<mesh>>;

// refuse: heddle: propagate: one term of a sum holds partial values over an axis and another does not
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using sum = hd::layout<mesh, hd::partial<hd::plus, tp>>;
using l = hd::propagate_through<hd::op::add, sum, hd::layout<mesh>>;

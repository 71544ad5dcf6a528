// refuse: heddle: propagate: two operands hold partial values over one axis under different operators
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using sum = hd::layout<mesh, hd::partial<hd::plus, tp>>;
using largest = hd::layout<mesh, hd::partial<hd::maximum, tp>>;
using l = hd::propagate_through<hd::op::concat<0>, sum, largest>;

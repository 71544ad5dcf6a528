// refuse: heddle: propagate: an operand has a halo, whose elements the operator would take twice; redistribute it to without_halo<layout>
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using bad = hd::propagate_through<hd::op::softmax<1>, hd::auto_redistribute, hd::layout<mesh, hd::halo<1, 1, hd::dp>>>;

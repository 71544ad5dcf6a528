// refuse: heddle: propagate: an operand has a halo, whose elements the operator would take twice; redistribute it to without_halo<layout>
#include <heddle/layout/propagate.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::dp>>;
static_assert(!hd::can_propagate<"bi,io->bo", rows, hd::layout<mesh>>);
using bad = hd::propagate<"bi,io->bo", rows, hd::layout<mesh>>;

// refuse: heddle: propagate: the operator does not commute with the operator of a partial operand (products and sums do only with plus
#include <heddle/layout/propagate.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using sum = hd::layout<mesh, hd::partial<hd::plus, hd::tp>>;
using row = hd::layout<mesh, hd::shard<0, hd::tp>>;
using column = hd::layout<mesh, hd::shard<1, hd::tp>>;
using whole = hd::layout<mesh>;
using l = hd::propagate<"bi,io->bo", hd::layout<mesh, hd::partial<hd::maximum, hd::tp>>, whole>;

// refuse: heddle: propagate: an operator that is not linear in an operand would compute with partial values
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using hidden = hd::layout<mesh, hd::shard<0, hd::dp>, hd::shard<1, hd::tp>>;
using weight = hd::layout<mesh, hd::shard<0, hd::tp>>;
using logits = hd::propagate<"bi,iv->bv", hidden, weight>;  // partial<plus, tp>: the all_reduce is missing
using labels = hd::layout<mesh, hd::shard<0, hd::dp>>;
using loss = hd::propagate_through<hd::op::cross_entropy<1>, logits, labels>;

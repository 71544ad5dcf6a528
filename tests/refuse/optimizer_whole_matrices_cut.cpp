// refuse: heddle: the rule of this optimizer acts on whole matrices, and an axis of the mesh cuts the weights, so that no rank has one: give the ranks of that axis (tp, say) to dp or pp, or take a rule of single elements, such as the default
#include "rule_parts.hpp"

#include <heddle/train/optimizers/muon.hpp>

namespace hd = heddle;

void train(const trainer_parts::options& o) {
  rule_parts::train_on<hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>, hd::optimizers::muon, hd::zero<1>>(o);
}

// refuse: heddle: post_validation takes steps back, and the rule of this optimizer has no `undo`; give it one, or use post_validation_with_copy
#include "rule_parts.hpp"

#include <heddle/train/optimizers/adafactor.hpp>
#include <heddle/train/post_validation.hpp>

void train(const trainer_parts::options& o) {
  rule_parts::train<heddle::optimizers::adafactor, heddle::post_validation>(o);
}

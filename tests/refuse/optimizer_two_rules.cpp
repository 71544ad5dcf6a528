// refuse: heddle: strategy<...> got two policies of one kind; keep one of them
#include "rule_parts.hpp"

#include <heddle/train/optimizers/lion.hpp>

void train(const trainer_parts::options& o) {
  rule_parts::train<heddle::optimizers::lion, heddle::optimizers::adamw>(o);
}

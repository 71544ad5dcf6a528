// refuse: heddle: captured_steps has optimizer rules of single elements, whose kernels read a step's numbers from the device's memory; with a rule of whole matrices leave it out
#include "rule_parts.hpp"

#include <heddle/train/captured_steps.hpp>
#include <heddle/train/optimizers/muon.hpp>

void train(const trainer_parts::options& o) {
  rule_parts::train<heddle::optimizers::muon, heddle::captured_steps>(o);
}

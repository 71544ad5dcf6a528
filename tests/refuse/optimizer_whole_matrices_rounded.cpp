// refuse: heddle: moments are rounded stochastically by rules of single elements only; with a rule of whole tensors take moments_in<V>, which rounds to the nearest
#include "rule_parts.hpp"

#include <heddle/train/optimizers/muon.hpp>

namespace hd = heddle;

void train(const trainer_parts::options& o) {
  rule_parts::train<hd::optimizers::muon, hd::precision<hd::moments_in<hd::bf16, hd::rounding::stochastic>>>(o);
}

// refuse: heddle: an optimizer's rule needs `static constexpr int moments = N;`, how many numbers it keeps for each element from step to step, 0 or more
#include "rule_parts.hpp"

using own = rule_parts::rule<rule_parts::named, rule_parts::configured, rule_parts::scaled, rule_parts::updating>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

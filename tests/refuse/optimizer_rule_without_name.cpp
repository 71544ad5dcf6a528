// refuse: heddle: an optimizer's rule needs `static constexpr const char* name = "...";`, one word that saves and errors say
#include "rule_parts.hpp"

using own = rule_parts::rule<rule_parts::counted, rule_parts::configured, rule_parts::scaled, rule_parts::updating>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

// refuse: heddle: an optimizer's rule needs `struct options` with a friend `std::string to_string(const options&)`, which ranks compare before they start
#include "rule_parts.hpp"

using own = rule_parts::rule<rule_parts::named, rule_parts::counted, rule_parts::scaled, rule_parts::updating>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

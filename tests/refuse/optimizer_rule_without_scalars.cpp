// refuse: heddle: an optimizer's rule needs `template <class T> struct scalars`, the plain numbers of a step, and `template <class T> static scalars<T> at(const options&, double rate, std::int64_t step, bool decays)`, which makes them of the step counted from 1
#include "rule_parts.hpp"

using own = rule_parts::rule<rule_parts::named, rule_parts::counted, rule_parts::configured, rule_parts::updating>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

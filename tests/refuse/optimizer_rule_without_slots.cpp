// refuse: heddle: a rule of whole tensors needs `static slot_shape slot(const options&, const whole_tensor&, int k)`, what it keeps of a tensor in slot k, and `template <class T> static std::int64_t room(const options&, const whole_tensor&)`, how many numbers of memory its step takes
#include "rule_parts.hpp"

#include <heddle/train/whole_tensors.hpp>

struct whole {
  static constexpr bool whole_tensors = true;
};
using own = rule_parts::rule<rule_parts::named, rule_parts::counted, rule_parts::configured, whole>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

// refuse: heddle: a rule of whole tensors needs `template <class T> struct scalars`, the plain numbers of a step, and `template <class T> static scalars<T> at(const options&, const whole_tensor&, double rate, std::int64_t step, bool decays)`, which makes them of the step counted from 1
#include "rule_parts.hpp"

#include <heddle/train/whole_tensors.hpp>

struct whole {
  static constexpr bool whole_tensors = true;
  static heddle::train::slot_shape slot(const rule_parts::configured::options&, const heddle::train::whole_tensor&, int) {
    return heddle::train::slot_shape::elements;
  }
  template <class T>
  static std::int64_t room(const rule_parts::configured::options&, const heddle::train::whole_tensor&) {
    return 0;
  }
};
using own = rule_parts::rule<rule_parts::named, rule_parts::counted, rule_parts::configured, rule_parts::scaled, whole>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

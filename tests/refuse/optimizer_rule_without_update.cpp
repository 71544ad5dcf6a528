// refuse: heddle: an optimizer's rule needs `template <class T> HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>&)`, the step of one element w with gradient g and moments m[0] to m[moments - 1]
#include "rule_parts.hpp"

using own = rule_parts::rule<rule_parts::named, rule_parts::counted, rule_parts::configured, rule_parts::scaled>;
void train(const trainer_parts::options& o) {
  rule_parts::train<own>(o);
}

// refuse: heddle: a model of f16 would need its loss scaled, which heddle does not do: gradients below 2^-24 would be lost; take bf16, float or double
#include <heddle/train/mixed_optimizer.hpp>

namespace hd = heddle;
using all_of_one_type = hd::train::mixed_optimizer<hd::f16, hd::zero<1>, hd::precision<>>;
void check(all_of_one_type& optimizer) {
  optimizer.start({}, 1);
}

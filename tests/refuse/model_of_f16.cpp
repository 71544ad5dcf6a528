// refuse: heddle: a model of f16 would need its loss scaled, which heddle does not do: gradients below 2^-24 would be lost; take bf16, float or double
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
using all_of_one_type = hd::train::sharded_optimizer<hd::f16, hd::optimizers::adamw, hd::precision<>, hd::zero<1>>;
void check(all_of_one_type& optimizer) {
  optimizer.start({}, 1);
}

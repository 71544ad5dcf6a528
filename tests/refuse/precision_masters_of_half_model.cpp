// refuse: heddle: weights of bf16 that are their own masters lose steps of less than half a last place: leave masters_in<bf16> out (masters are float then), or take weights_in<bf16, rounding::stochastic>
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
using own_masters = hd::train::sharded_optimizer<hd::bf16, hd::optimizers::adamw, hd::precision<hd::masters_in<hd::bf16>>, hd::zero<1>>;
void check(own_masters& optimizer) {
  optimizer.start({}, 1);
}

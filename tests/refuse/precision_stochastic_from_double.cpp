// refuse: heddle: stochastic rounding is from float, and the optimizer computes in double here: take masters and moments of float or bf16
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
using odd = hd::precision<hd::weights_in<hd::bf16, hd::rounding::stochastic>, hd::masters_in<double>>;
template class hd::train::sharded_optimizer<float, hd::optimizers::adamw, odd, hd::zero<0>>;

// refuse: heddle: stochastic rounding is from float, and AdamW computes in double here: take masters and moments of float or bf16
#include <heddle/train/mixed_optimizer.hpp>

namespace hd = heddle;
using odd = hd::precision<hd::weights_in<hd::bf16, hd::rounding::stochastic>, hd::masters_in<double>>;
template class hd::train::mixed_optimizer<float, hd::zero<0>, odd>;

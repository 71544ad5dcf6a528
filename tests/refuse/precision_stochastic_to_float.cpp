// refuse: heddle: stochastic rounding is to bf16; float and double are rounded to the nearest
#include <heddle/train/precision.hpp>

namespace hd = heddle;
hd::precision<hd::weights_in<float, hd::rounding::stochastic>> odd;

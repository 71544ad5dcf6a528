// refuse: heddle: precision<...> got two element types for one thing; keep one of them
#include <heddle/train/precision.hpp>

namespace hd = heddle;
hd::precision<hd::gradients_in<hd::bf16>, hd::moments_in<float>, hd::gradients_in<float>> odd;

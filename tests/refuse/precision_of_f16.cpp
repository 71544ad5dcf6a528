// refuse: heddle: a precision<...> takes the element types bf16, float and double; f16 would need loss scaling, which heddle does not have, and integers do not round: take bf16
#include <heddle/train/precision.hpp>

namespace hd = heddle;
hd::precision<hd::gradients_in<hd::f16>> small;

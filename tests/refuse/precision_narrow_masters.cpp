// refuse: heddle: masters_in<M> is narrower than weights_in<W>: master weights are what weights are rounded from; give them at least as many bits
#include <heddle/train/precision.hpp>

namespace hd = heddle;
hd::precision<hd::weights_in<float>, hd::masters_in<hd::bf16>> odd;

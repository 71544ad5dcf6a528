// refuse: heddle: prefetch::ahead<N>: layers are brought back at least one layer ahead; or prefetch::off
#include <heddle/train/activations/offload.hpp>

static_assert(sizeof(heddle::activations::prefetch::ahead<0>) > 0);

// refuse: heddle: activations::offload<Store, ...>: the store does not model activation_store, or is not made from store_options
#include <heddle/train/activations/offload.hpp>

namespace hd = heddle;
struct disk {};
static_assert(sizeof(hd::activations::offload<disk>) > 0);

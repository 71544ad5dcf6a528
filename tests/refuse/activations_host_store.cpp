// refuse: heddle: activations::host_store keeps on the host what leaves a device's memory; these activations are on the host: take activations::keep, or a store that is elsewhere, such as file_store
#include <heddle/train/activations/host_store.hpp>
#include <heddle/train/activations/offload.hpp>

namespace act = heddle::activations;
static_assert(sizeof(act::offload<act::host_store>::layers<float>) > 0);

// refuse: heddle: precision<...> takes weights_in<W>, gradients_in<G>, masters_in<M>, moments_in<V> and products_in<P>
#include <heddle/train/precision.hpp>

namespace hd = heddle;
hd::precision<hd::weights_in<hd::bf16>, float> odd;

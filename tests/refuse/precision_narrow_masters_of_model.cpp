// refuse: heddle: masters_in<M> is narrower than the weights, which are of the model's scalar if weights_in<W> is not given: master weights are what weights are rounded from; give them at least as many bits
#include <heddle/train/mixed_optimizer.hpp>

namespace hd = heddle;
template class hd::train::mixed_optimizer<float, hd::zero<1>, hd::precision<hd::masters_in<hd::bf16>>>;

// refuse: heddle: masters_in<M> is narrower than the weights, which are of the model's scalar if weights_in<W> is not given: master weights are what weights are rounded from; give them at least as many bits
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
template class hd::train::sharded_optimizer<float, hd::optimizers::adamw, hd::precision<hd::masters_in<hd::bf16>>, hd::zero<1>>;

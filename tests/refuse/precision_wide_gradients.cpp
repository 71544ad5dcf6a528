// refuse: heddle: gradients_in<G> is wider than the model's scalar, in which gradients are computed and added up
#include <heddle/train/sharded_optimizer.hpp>

namespace hd = heddle;
template class hd::train::sharded_optimizer<float, hd::optimizers::adamw, hd::precision<hd::gradients_in<double>>, hd::zero<1>>;

// refuse: heddle: gradients_in<G> is wider than the model's scalar, in which gradients are computed and added up
#include <heddle/train/mixed_optimizer.hpp>

namespace hd = heddle;
template class hd::train::mixed_optimizer<float, hd::zero<1>, hd::precision<hd::gradients_in<double>>>;

// refuse: heddle: reduce_beside sums gradients in the type in which they are kept; leave gradients_in<G> out of the precision, or reduce_beside out of the strategy
#include <heddle/train/gradient_sums.hpp>
#include <heddle/train/optimizers/by_default.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/zero.hpp>

namespace hd = heddle;
using optimizer = hd::train::sharded_optimizer<float, hd::optimizers::adamw, hd::precision<hd::gradients_in<hd::bf16>>, hd::zero<1>>;
static_assert(hd::train::detail::sums_as_kept<optimizer>());

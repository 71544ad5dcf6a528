// refuse: heddle: reduce_beside sums gradients in the type in which they are kept; leave gradients_in<G> out of the precision, or reduce_beside out of the strategy
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/optimizers/adamw.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/zero.hpp>

#include <optional>

namespace hd = heddle;
using optimizer = hd::train::sharded_optimizer<float, hd::optimizers::adamw, hd::precision<hd::gradients_in<hd::bf16>>, hd::zero<1>>;
void start(optimizer& o, hd::threads_communicator& group, hd::row_view<float, hd::host_memory> row) {
  std::optional<hd::threads_communicator::started> started;
  o.start_reduce(group, row, 0, 1, started);
}

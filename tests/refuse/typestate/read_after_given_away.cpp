// refuse: while it is in the 'consumed' state
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/sharded.hpp>

#include <utility>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>>;
using split = heddle::layout<mesh, heddle::shard<0, heddle::dp>>;
float program(heddle::threads_communicator& c) {
  heddle::sharded<float, 1, split> x(split{}, heddle::shape{8}, c.rank());
  auto sum = c.start_all_reduce(std::move(x), heddle::plus{});
  const float first = x.elements()[0];
  x = std::move(sum).wait();
  return first;
}

// refuse: while it is in the 'unknown' state
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/buffer.hpp>

#include <utility>

void program(heddle::threads_communicator& c, heddle::buffer<float> x, bool wanted) {
  auto sum = c.start_all_reduce(std::move(x), heddle::plus{});
  if (wanted) x = std::move(sum).wait();
}

// refuse: while it is in the 'consumed' state
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/buffer.hpp>

#include <utility>

void program(heddle::threads_communicator& c, heddle::buffer<float> x) {
  auto sum = c.start_all_reduce(std::move(x), heddle::plus{});
  x = std::move(sum).wait();
  x = std::move(sum).wait();
}

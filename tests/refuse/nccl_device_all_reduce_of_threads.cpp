// refuse: heddle: this algorithm is a call of one transport, and the communicator is of another
// and: threads_communicator
#include <heddle/comm/threads.hpp>
#include <heddle/nccl/device_all_reduce.hpp>

void f(heddle::threads_communicator& c, std::span<float> x) {
  heddle::all_reduce<heddle::algo::nccl_device_all_reduce<16>>(c, x, heddle::plus{});
}

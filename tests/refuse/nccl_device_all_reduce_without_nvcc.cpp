// refuse: heddle: kernels with barriers among ranks are launched in files that nvcc compiles
#include <heddle/nccl/device_all_reduce.hpp>

void f(heddle::nccl_communicator& c, std::span<float> x) {
  heddle::all_reduce<heddle::algo::nccl_device_all_reduce<16>>(c, x, heddle::plus{});
}

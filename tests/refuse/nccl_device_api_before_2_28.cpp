// refuse: heddle: NCCL's device API comes with NCCL 2.28 and its header nccl_device.h; this program is compiled with an older nccl.h
#include <nccl.h>
#undef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE 22707
#include <heddle/nccl/device_all_reduce.hpp>

void f(heddle::nccl_communicator& c, std::span<float> x) {
  heddle::all_reduce<heddle::algo::nccl_device_all_reduce<16>>(c, x, heddle::plus{});
}

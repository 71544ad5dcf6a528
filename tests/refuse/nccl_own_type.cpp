// refuse: heddle: NCCL folds integers of 1, 4 or 8 bytes, float, double, __half, __nv_bfloat16 and fp8 only
#include <heddle/nccl/nccl.hpp>

void f(heddle::nccl_communicator& c, std::span<const short> x, std::span<short> y) {
  c.reduce_scatter(x, y, heddle::plus{});
}

// refuse: heddle: this queue runs no host code, so it must launch kernels (launch_each, see heddle/core/launch_each.hpp; that of a CUDA device does in files that nvcc compiles)
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/cuda/memory.hpp>

namespace hd = heddle;

void zero_all(hd::cuda_memory::queue& queue, hd::vector_view<float, hd::cuda_memory> x) {
  hd::detail::fill<float, hd::cuda_memory>(queue, x, 0.0f);
}

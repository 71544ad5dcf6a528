// heddle/compute/cuda/stream_kernels.hpp: kernels on a CUDA stream (not run on a GPU).
// Only nvcc (or clang for CUDA) sees what is in it.
#pragma once

#if defined(__CUDACC__)

#include <heddle/compute/cuda/launcher.hpp>

#include <cstdint>

#include <cuda_runtime.h>

namespace heddle::inline v0::compute::detail::on_cuda {

struct add_op {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct larger_op {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return larger(a, b);
  }
};

/// What a group of threads has with its `combined(x, op)`, which gives each of them the same.
template <class Group>
class group_reductions {
 public:
  template <class T>
  __device__ T sum(T x) {
    return static_cast<Group*>(this)->combined(x, add_op{});
  }
  template <class T>
  __device__ T largest(T x) {
    return static_cast<Group*>(this)->combined(x, larger_op{});
  }
};

/// The threads of a block, which share a row. Warps first, by a butterfly that gives each lane the same bits, then warp by warp.
class block_of_row : public group_reductions<block_of_row> {
 public:
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ bool leads() const { return threadIdx.x == 0; }
  __device__ void sync() const { __syncthreads(); }
  template <class T, class Op>
  __device__ T combined(T x, Op op) {
    __shared__ T of_warps[32];
    for (int step = 16; step > 0; step /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (blockDim.x == 32) return x;
    __syncthreads();  // what the last call left has been read
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warps[0];
    for (unsigned w = 1; w < blockDim.x / 32; ++w) x = op(x, of_warps[w]);
    return x;
  }
};

/// The threads of a block that have one column: neighbours in x have neighbouring columns.
class threads_of_column : public group_reductions<threads_of_column> {
 public:
  static constexpr int columns = 32, rows = 8;
  __device__ explicit threads_of_column(bool is_there) : is_there_(is_there) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.y); }
  __device__ int size() const { return rows; }
  __device__ bool leads() const { return is_there_ && threadIdx.y == 0; }
  template <class T, class Op>
  __device__ T combined(T x, Op op) {
    __shared__ T all[rows][columns];
    __syncthreads();
    all[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    x = all[0][threadIdx.x];
    for (int r = 1; r < rows; ++r) x = op(x, all[r][threadIdx.x]);
    return x;
  }

 private:
  bool is_there_;
};

/// Does nothing; its attributes say which architecture this file was compiled for.
template <class>
__global__ void compiled_for() {}

template <class Body>
__global__ void each_kernel(std::int64_t n, Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) body(i);
}
// Without launch bounds: told of 512 threads ptxas spills in `draw_token_of_row`, or takes more registers in kernels of norms and keeps fewer rows under way. All
// bodies stay below the 128 registers with which 512 threads, the most that `stream_launcher` chooses, can be launched.
template <class Body>
__global__ void row_kernel(std::int64_t rows, Body body) {
  block_of_row group;
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) body(group, i);
}
template <class T, class Body>
__global__ void __launch_bounds__(256, 2) tile_kernel(std::int64_t items, const __grid_constant__ Body body) {
  extern __shared__ __align__(16) unsigned char memory[];
  block_of_row group;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) body(group, i, reinterpret_cast<T*>(memory));
}
template <class Body>
__global__ void column_kernel(std::int64_t count, Body body) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * threads_of_column::columns + threadIdx.x;
  threads_of_column group(j < count);
  body(group, j < count ? j : count - 1);  // all threads of the block take part in its sums
}

}  // namespace heddle::inline v0::compute::detail::on_cuda

#endif

// heddle/compute/cuda/warp_instructions.hpp: warp instructions as PTX (not run on a GPU).
// Only nvcc (or clang for CUDA) sees what is in it.
#pragma once

#if defined(__CUDACC__)

#include <heddle/core/half_precision.hpp>

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

namespace heddle::inline v0::compute::detail::on_cuda {

/// A lane of a warp of a block, for devices from sm_80 on: compute/group/warps.hpp says what its members do.
class warp_of_block {
 public:
  template <class E, int N>
  struct registers {
    E values[N];
    __device__ E& operator()(int, int i) { return values[i]; }
    __device__ const E& operator()(int, int i) const { return values[i]; }
  };

  __device__ warp_of_block() : thread_(threadIdx.x) {}
  __device__ int index() const { return static_cast<int>(thread_ / 32); }
  __device__ int lane() const { return static_cast<int>(thread_ % 32); }
  template <class F>
  __device__ void each_lane(const F& f) {
    f(lane());
  }
  static __device__ void forget(int& x) { asm volatile("" : "+r"(x)); }
  __device__ void forget() { asm volatile("" : "+r"(thread_)); }
  __device__ void sync() const { __syncthreads(); }
  __device__ void sync_lanes() const { __syncwarp(); }

  template <class T>
  __device__ void copy(T* to, const T* from, bool is_there) const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared(to)), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
#else
    __trap();  // multiplies_matrices() says no
#endif
  }
  __device__ void copy_number(float* to, const float* from, bool is_there) const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared(to)), "l"(from), "r"(is_there ? 4 : 0)
                 : "memory");
#else
    __trap();  // multiplies_matrices() says no
#endif
  }
  __device__ void commit() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    __trap();  // multiplies_matrices() says no
#endif
  }
  template <int N>
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#else
    __trap();  // multiplies_matrices() says no
#endif
  }
  template <class T>
  __device__ void store(T* to, const T* from) const {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
  template <class T>
  __device__ void store_pair(T* to, std::uint32_t pair) const {
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  }

  template <bool Transposed, class T, class F>
  __device__ void load_matrices(registers<std::uint32_t, 4>& x, const T* memory, const F& at, int turn,
                                int step) const {
#if __CUDA_ARCH__ >= 800
    // The first sum is the same for all loads of a product: each of the others takes an instruction at most.
    const std::uint32_t of_lane = shared(memory) + 2 * static_cast<std::uint32_t>(at(lane()));
    const std::uint32_t from =
        (of_lane ^ (2 * static_cast<std::uint32_t>(turn))) + 2 * static_cast<std::uint32_t>(step);
    if constexpr (Transposed)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.values[0]), "=r"(x.values[1]), "=r"(x.values[2]), "=r"(x.values[3])
                   : "r"(from));
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.values[0]), "=r"(x.values[1]), "=r"(x.values[2]), "=r"(x.values[3])
                   : "r"(from));
#else
    __trap();  // multiplies_matrices() says no
#endif
  }
  template <class T>
  __device__ void multiply_add(registers<float, 4>& c, const registers<std::uint32_t, 4>& a,
                               const registers<std::uint32_t, 4>& b, int half) const {
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, bf16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c.values[0]), "+f"(c.values[1]), "+f"(c.values[2]), "+f"(c.values[3])
          : "r"(a.values[0]), "r"(a.values[1]), "r"(a.values[2]), "r"(a.values[3]), "r"(b.values[2 * half]),
            "r"(b.values[2 * half + 1]));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c.values[0]), "+f"(c.values[1]), "+f"(c.values[2]), "+f"(c.values[3])
          : "r"(a.values[0]), "r"(a.values[1]), "r"(a.values[2]), "r"(a.values[3]), "r"(b.values[2 * half]),
            "r"(b.values[2 * half + 1]));
#else
    __trap();  // multiplies_matrices() says no
#endif
  }
  template <class T>
  static __device__ std::uint32_t packed(float x, float y) {
    std::uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, bf16>)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));  // the first operand is the upper half
    else
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
#else
    __trap();
#endif
    return pair;
  }
  template <int N, class Op>
  __device__ void over_quads(registers<float, N>& x, const Op& op) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x.values[i] = op(x.values[i], __shfl_xor_sync(0xffffffffu, x.values[i], 1));
      x.values[i] = op(x.values[i], __shfl_xor_sync(0xffffffffu, x.values[i], 2));
    }
  }
  template <class E, int N, class Op>
  __device__ void over_lanes(registers<E, N>& x, const Op& op) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        x.values[i] = op(x.values[i], __shfl_xor_sync(0xffffffffu, x.values[i], step));
  }
  template <int N>
  __device__ bool any(const registers<int, N>& x) const {
    int all = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) all |= x.values[i];
    return __any_sync(0xffffffffu, all) != 0;
  }
  static __device__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

 private:
  unsigned thread_;

  static __device__ std::uint32_t shared(const void* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  }
};

template <class T, int Warps, int Blocks, class Body>
__global__ void __launch_bounds__(32 * Warps, Blocks)
    warp_kernel(std::int64_t items, const __grid_constant__ Body body) {
  extern __shared__ __align__(128) unsigned char matrices[];
  warp_of_block w;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) body(w, i, reinterpret_cast<T*>(matrices));
}

}  // namespace heddle::inline v0::compute::detail::on_cuda

#endif

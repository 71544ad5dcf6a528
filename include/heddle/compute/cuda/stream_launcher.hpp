// heddle/compute/cuda/stream_launcher.hpp: launches on a CUDA stream (not run on a GPU).
// Only nvcc (or clang for CUDA) sees what is in it.
#pragma once

#if defined(__CUDACC__)

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/lt_products.hpp>
#include <heddle/compute/cuda/stream_kernels.hpp>
#include <heddle/compute/cuda/warp_instructions.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cuda_runtime.h>
#include <thrust/binary_search.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system_error.h>
#include <thrust/system/cuda/execution_policy.h>

namespace heddle::inline v0 {
/// out[i] = in[0] + ... + in[i - 1], in the order of the queue. Errors: `cuda_error`.
inline void exclusive_sum(cuda_memory::queue& queue, std::int64_t n, const std::int64_t* in, std::int64_t* out) {
  const detail::on_cuda_device here(queue.device());
  const auto scan = [&](void* between, std::size_t& bytes) {
    detail::require_cuda(cub::DeviceScan::ExclusiveSum(between, bytes, in, out, n, queue.stream()),
                         "cub::DeviceScan::ExclusiveSum", queue.device());
  };
  std::size_t bytes = 0;
  scan(nullptr, bytes);
  buffer<std::byte, cuda_memory> between(queue, static_cast<std::int64_t>(bytes), "what a scan needs between");
  scan(between.address(), bytes);
}
}  // namespace heddle::inline v0

namespace heddle::inline v0::compute::detail::on_cuda {

struct index_body {
  std::int32_t* out;
  HEDDLE_HD void operator()(std::int64_t i) const { out[i] = static_cast<std::int32_t>(i); }
};

/// Memory of the queue's pool for algorithms of Thrust, given back when this goes, in the order of the queue.
struct pool_allocator {
  using value_type = char;
  cuda_memory::queue& queue;
  std::vector<buffer<char, cuda_memory>> taken{};
  char* allocate(std::ptrdiff_t n) {
    taken.emplace_back(queue, n, "what algorithms need between");
    return taken.back().address();
  }
  void deallocate(char*, std::size_t) noexcept {}
};

/// Launches on the stream of a queue.
template <class Floats>
struct stream_launcher : launcher_base {
  using products = lt_products<Floats>;
  cuda_memory::queue& queue;
  products& library;

  stream_launcher(cuda_memory::queue& on, products& by) : queue(on), library(by) {}

  template <class Body>
  void each(std::int64_t n, const Body& body) const {
    if (n > 0) launch("each_kernel", each_kernel<Body>, blocks((n + 255) / 256), dim3(256), n, body);
  }
  template <class Body>
  void each_row(std::int64_t rows, std::int64_t columns, const Body& body) const {
    const unsigned threads = columns <= 256 ? 32 : columns <= 4096 ? 256 : 512;
    if (rows > 0) launch("row_kernel", row_kernel<Body>, blocks(rows), dim3(threads), rows, body);
  }
  template <class Body>
  void each_column(std::int64_t columns, const Body& body) const {
    constexpr int wide = threads_of_column::columns;
    if (columns > 0)
      launch("column_kernel", column_kernel<Body>, blocks((columns + wide - 1) / wide),
             dim3(wide, threads_of_column::rows), columns, body);
  }
  // What sums of a block need has its place beside tiles: at most 1 KiB.
  std::int64_t tile_bytes() const { return tile_bytes_of(offered_to_block() - 1024); }
  template <class T, class Body>
  void each_tile(std::int64_t items, std::int64_t edge, std::int64_t elements, const Body& body) const {
    if (items <= 0) return;
    launch_tiles("tile_kernel", tile_kernel<T, Body>, dim3(edge >= 64 ? 256 : 128), items,
                 static_cast<std::size_t>(elements) * sizeof(T), "tiles of " + std::to_string(edge) + " rows", body);
  }
  /// Whether the device has the instructions of warps and the program was compiled for them, both from sm_80 on: what the driver translates from an older
  /// architecture, such as nvcc's default, is without them.
  bool multiplies_matrices() const {
    if (attribute(cudaDevAttrComputeCapabilityMajor) < 8) return false;
    const heddle::v0::detail::on_cuda_device here(queue.device());
    cudaFuncAttributes compiled{};
    heddle::v0::detail::require_cuda(cudaFuncGetAttributes(&compiled, compiled_for<void>), "cudaFuncGetAttributes",
                                     queue.device());
    return compiled.ptxVersion >= 80;
  }
  template <class T, class Body>
  void each_item_of_warps(std::int64_t items, const Body& body) const {
    if (items > 0)
      launch_tiles("warp_kernel", warp_kernel<T, Body::warps, Body::blocks, Body>, dim3(32 * Body::warps), items,
                   static_cast<std::size_t>(Body::elements) * sizeof(T), "tiles of matrices", body);
  }
  template <class T>
  buffer<T, cuda_memory> room(std::int64_t n) const {
    return buffer<T, cuda_memory>(queue, n, "what kernels need between");
  }
  template <class Key>
  void sort_places(const Key* keys, std::int64_t n, Key* sorted, std::int32_t* places,
                   int bits = static_cast<int>(8 * sizeof(Key))) const {
    const auto numbers = room<std::int32_t>(n);
    each(n, index_body{const_cast<std::int32_t*>(numbers.address())});
    const heddle::v0::detail::on_cuda_device here(queue.device());
    const auto sort = [&](void* between, std::size_t& bytes) {
      heddle::v0::detail::require_cuda(cub::DeviceRadixSort::SortPairs(between, bytes, keys, sorted, numbers.address(),
                                                                       places, n, 0, bits, queue.stream()),
                                       "cub::DeviceRadixSort::SortPairs", queue.device());
    };
    std::size_t bytes = 0;
    sort(nullptr, bytes);
    auto between = room<std::byte>(static_cast<std::int64_t>(bytes));
    sort(between.address(), bytes);
  }
  void lower_bounds(const std::int32_t* sorted, std::int64_t n, std::int64_t count, std::int64_t* bounds) const {
    const heddle::v0::detail::on_cuda_device here(queue.device());
    const thrust::counting_iterator<std::int32_t> values(0);
    pool_allocator memory{queue, {}};
    try {
      thrust::lower_bound(thrust::cuda::par_nosync(memory).on(queue.stream()), sorted, sorted + n, values,
                          values + count, bounds);
    } catch (const thrust::system_error& e) {
      static_cast<void>(cudaGetLastError());
      throw cuda_error("heddle: thrust::lower_bound on CUDA device " + std::to_string(queue.device()) + ": " +
                       e.what());
    }
  }
  template <bool TA, bool TB, class In, class Out, class Sum>
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b, Out* c, Sum beta) const {
    library.template multiply<TA, TB>(queue.stream(), m, n, k, a, b, c, beta);
  }
  template <bool TA, bool TB, class In, class Out, class Sum>
  bool multiply_ending(std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b, Out* c, Sum beta,
                       const product_ending<Out>& with) const {
    return library.template multiply_ending<TA, TB>(queue.stream(), m, n, k, a, b, c, beta, with);
  }
  bool multiplies_float8() const { return library.multiplies_float8(); }
  template <class A, class B, class Out>
  void multiply_float8(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                       const float* factor_a, const float* factor_b) const {
    library.template multiply_float8<false>(queue.stream(), m, n, k, a, b, c, beta, factor_a, factor_b);
  }
  template <class A, class B, class Out>
  bool multiply_float8_rows(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                            const float* factor_a, const float* factor_b) const {
    return library.template multiply_float8<true>(queue.stream(), m, n, k, a, b, c, beta, factor_a, factor_b);
  }

 private:
  int attribute(cudaDeviceAttr what) const {
    int value = 0;
    heddle::v0::detail::require_cuda(cudaDeviceGetAttribute(&value, what, queue.device()), "cudaDeviceGetAttribute",
                                     queue.device());
    return value;
  }
  std::int64_t offered_to_block() const { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }
  // All that a block can have, once: it is an attribute of the function on the device, which other threads launch, too.
  static void allow_shared_memory(const void* kernel, int device, std::int64_t offered) {
    static std::mutex mutex;
    static std::set<std::pair<const void*, int>> allowed;
    const std::lock_guard lock(mutex);
    if (allowed.contains({kernel, device})) return;
    cudaFuncAttributes has{};
    heddle::v0::detail::require_cuda(cudaFuncGetAttributes(&has, kernel), "cudaFuncGetAttributes", device);
    heddle::v0::detail::require_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(offered - static_cast<std::int64_t>(has.sharedSizeBytes))),
        "cudaFuncSetAttribute", device);
    allowed.insert({kernel, device});
  }
  template <class Body>
  void launch_tiles(const char* name, void (*kernel)(std::int64_t, Body), dim3 block, std::int64_t items,
                    std::size_t bytes, const std::string& what, const Body& body) const {
    const heddle::v0::detail::on_cuda_device here(queue.device());
    const std::int64_t offered = offered_to_block();
    if (bytes > static_cast<std::size_t>(offered))
      throw cuda_error("heddle: " + what + " want " + std::to_string(bytes) + " bytes of shared memory, device " +
                       std::to_string(queue.device()) + " offers a block " + std::to_string(offered));
    if (bytes > 32 * 1024)  // a kernel has 48 KiB without being asked, with its static shared memory
      allow_shared_memory(reinterpret_cast<const void*>(kernel), queue.device(), offered);
    cudaLaunchConfig_t how{};
    how.gridDim = blocks(items);
    how.blockDim = block;
    how.dynamicSmemBytes = bytes;
    how.stream = queue.stream();
    heddle::v0::detail::require_cuda(cudaLaunchKernelEx(&how, kernel, items, body), name, queue.device());
  }
  static dim3 blocks(std::int64_t n) {
    constexpr std::int64_t most = 2147483647;
    return dim3(static_cast<unsigned>(n < most ? n : most));
  }
  template <class Body>
  void launch(const char* kernel, void (*f)(std::int64_t, Body), dim3 grid, dim3 block, std::int64_t n,
              const Body& body) const {
    const heddle::v0::detail::on_cuda_device here(queue.device());
    cudaLaunchConfig_t how{};
    how.gridDim = grid;
    how.blockDim = block;
    how.stream = queue.stream();
    heddle::v0::detail::require_cuda(cudaLaunchKernelEx(&how, f, n, body), kernel, queue.device());
  }
};

}  // namespace heddle::inline v0::compute::detail::on_cuda

#endif

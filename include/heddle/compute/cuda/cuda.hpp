// heddle/compute/cuda/cuda.hpp: a backend on a CUDA stream (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/optimizer.hpp>
#include <heddle/compute/cuda/cached_rows.hpp>
#include <heddle/compute/cuda/draw_tokens.hpp>
#include <heddle/compute/cuda/elementwise.hpp>
#include <heddle/compute/cuda/embedding.hpp>
#include <heddle/compute/cuda/expert_choice.hpp>
#include <heddle/compute/cuda/float8_products.hpp>
#include <heddle/compute/cuda/head_parts.hpp>
#include <heddle/compute/cuda/images.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/products.hpp>
#include <heddle/compute/cuda/routing.hpp>
#include <heddle/compute/cuda/rows.hpp>
#include <heddle/compute/cuda/stream_launcher.hpp>
#include <heddle/compute/cuda/sums.hpp>
#include <heddle/compute/group/attention_bodies.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/graph.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute {

namespace detail::on_cuda {
using in_groups::body;
}  // namespace detail::on_cuda

/// A backend on a stream of a CUDA device. It serves one rank; tensors lie in `cuda_memory`. Kernels element by element, biases, norms,
/// embeddings (rotary ones too), rows of a cache, softmax cross-entropy, squared errors, sums, casts, attention, AdamW, the routing and products of experts, parts of heads and images are kernels of the stream,
/// without atomics: results do not depend on the order in which threads run. Matrix products are cuBLASLt's: in full precision, or
/// of operands of bf16 or f16, added up in float; with a bias, GELU or sums of columns behind them as its epilogues, where it has them (`fused_product_facet`);
/// of operands that are scaled and rounded to 8 bits (`scaled_product_facet`).
/// Positions of rotary embeddings, rows of a cache, slices and pages of attention, and ids, places and offsets of experts lie on the device and are not checked there. `Launcher` launches (compute/cuda/launcher.hpp): `compute::cuda` launches on the stream.
/// Kernels are described in kernels.hpp.
/// Errors: `config_error` if there is no such device; `cuda_error` for what CUDA refuses; `layout_error` if the arguments of a kernel
/// do not fit together.
template <class Launcher>
class basic_cuda : public detail::on_cuda::token_drawing_members<basic_cuda<Launcher>, cuda_memory> {
 public:
  using kind = backend_kind;
  using space = cuda_memory;

  /// On a stream of its own, of the thread's device.
  basic_cuda() = default;
  /// On this queue: `compute::cuda backend(hd::cuda_memory::queue(1))`.
  explicit basic_cuda(space::queue queue) : queue_(std::move(queue)) {}

  space::queue& queue() noexcept { return queue_; }
  /// On which bodies of operations are launched.
  Launcher launcher() noexcept { return {queue_, products_}; }
  /// Cores of the host that kernels take.
  static constexpr int threads() noexcept { return 1; }
  /// Whose matrix products they are.
  static constexpr const char* gemm_name() noexcept { return Launcher::products::name; }

  /// Whose products of 16-bit operands they are.
  static constexpr const char* half_product_name() noexcept { return Launcher::products::half_name; }

  /// Bytes that attention takes for a moment where `queries` queries of `heads` heads are in parts of their keys, up to `most_keys` each: 32 MiB at most, or what one query alone needs. `head_dim`,
  /// `value_dim`: elements of a head of q and k, and of v. For heads that begin at multiples of 16 bytes.
  template <class T>
  std::int64_t few_query_bytes(std::int64_t queries, std::int64_t heads, std::int64_t head_dim, std::int64_t value_dim,
                               std::int64_t most_keys) {
    using masked = detail::in_groups::listed_slices;
    const detail::in_groups::heads_at<const T> q{nullptr, heads * head_dim, head_dim};
    const detail::in_groups::heads_at<T> out{nullptr, heads * value_dim, value_dim};
    const detail::in_groups::heads_at<const T> v{nullptr, out.stride, value_dim};
    return detail::in_groups::few_query_bytes(
        launcher(),
        detail::in_groups::attention_inputs<T, masked>{q, q, v, queries, heads, 1, {nullptr, 0}, {}, {}, {}, most_keys},
        queries, most_keys, out);
  }

 private:
  friend class detail::on_cuda::token_drawing_members<basic_cuda, cuda_memory>;

  space::queue queue_{};
  typename Launcher::products products_{queue_};
};

#if defined(__CUDACC__)
/// The backend that launches on a CUDA stream; in files that nvcc compiles.
using cuda = basic_cuda<detail::on_cuda::stream_launcher<detail::on_cuda::full_floats>>;
/// The same, whose products of floats round operands to TensorFloat-32 (10 bits of the mantissa, relative error 2^-11 each) and add
/// up in float.
using cuda_tf32 = basic_cuda<detail::on_cuda::stream_launcher<detail::on_cuda::tensor_floats>>;
/// `cuda`, whose products of operands in 8 bits are of the same numbers as bf16 where the device has none in 8 bits (before sm_89): with `cuda` they are an error there.
using cuda_float8_in_bf16 = basic_cuda<detail::on_cuda::stream_launcher<detail::on_cuda::float8_in_bf16>>;
#else
namespace detail::on_cuda {
// In other files their names are an error that says so.
template <class Nothing>
struct compiled_by_nvcc {
  static_assert(!std::is_void_v<Nothing>,
                "heddle: compute::cuda and the backends like it are for files that nvcc compiles; name this one .cu, "
                "or give nvcc -x cu");
  using kind = backend_kind;
};
}  // namespace detail::on_cuda
using cuda = detail::on_cuda::compiled_by_nvcc<void>;
using cuda_tf32 = detail::on_cuda::compiled_by_nvcc<void>;
using cuda_float8_in_bf16 = detail::on_cuda::compiled_by_nvcc<void>;
#endif

}  // namespace heddle::inline v0::compute

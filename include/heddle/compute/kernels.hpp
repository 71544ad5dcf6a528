// heddle/compute/kernels.hpp: the facets of a compute backend, as concepts.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/ops/attention.hpp>
#include <heddle/compute/ops/cache.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/embedding.hpp>
#include <heddle/compute/ops/images.hpp>
#include <heddle/compute/ops/optimizer.hpp>
#include <heddle/compute/ops/rotary.hpp>
#include <heddle/compute/ops/routing.hpp>
#include <heddle/compute/ops/rows.hpp>
#include <heddle/compute/ops/sums.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute {

/// The kind of the policies that compute: `host<...>` and, later, device backends.
struct backend_kind {};

namespace detail {
/// The arguments the concepts below call a backend with, in its space.
template <class T, class Space = host_memory>
struct kernel_arguments {
  matrix_view<const T, Space> in{};
  matrix_view<T, Space> out{};
  row_view<const T, Space> values{};
  row_view<T, Space> results{};
  token_ids_in<Space> ids{};
  sum_of_type<T> factor{};
  row_view<const sum_of_type<T>, Space> sums{};
  row_view<sum_of_type<T>, Space> added{};
  matrix_view<const sum_of_type<T>, Space> tables{};
  matrix_view<sum_of_type<T>, Space> gradient{};
  view<const T, dynamic_shape<3>, Space> stack_in{};
  view<sum_of_type<T>, dynamic_shape<3>, Space> stack_out{};
  matrix_view<const std::int32_t, Space> places{};
  matrix_view<std::int32_t, Space> places_out{};
  row_view<std::int32_t, Space> ids_out{};
  row_view<const std::int64_t, Space> offsets{};
  row_view<std::int64_t, Space> offsets_out{};
  number_in<Space> number{};
};
template <class B, class T>
using arguments_of = kernel_arguments<T, space_of<B>>;
}  // namespace detail

/// Where a backend computes: its memory space, and the queue in whose order its kernels run. On a device a kernel has been
/// queued when its call returns; on the host it has run.
template <class B>
concept backend_queue = requires(B& backend) {
  requires memory_space<typename B::space>;
  { backend.queue() } -> std::same_as<typename B::space::queue&>;
};

namespace detail {
template <bool Ok, class Backend>
inline constexpr bool backend_says_its_queue = Ok;
}  // namespace detail

/// The queue of a backend; the host's, an empty object, of one that names none. A compile error for a backend of another memory
/// that names none.
template <class B>
typename space_of<B>::queue& queue_of(B& backend) noexcept {
  if constexpr (requires { backend.queue(); }) {
    return backend.queue();
  } else {
    static_assert(
        detail::backend_says_its_queue<std::is_same_v<space_of<B>, host_memory>, B>,
        "heddle: this backend computes in another memory than the host's, so it has to say in whose order: give it a "
        "member queue() that returns a reference to its space::queue");
    static typename space_of<B>::queue nothing_to_keep;
    return nothing_to_keep;
  }
}

/// Matrix products and biases. `S` below is `sum_of_type<T>`: float for elements of 16 bits, which kernels read and write rounded, and compute
/// in float. Statistics, epsilons, factors, tables of angles and gradients of weights are of type S.
/// `matmul<TA, TB>(a, b, c, beta)`: c = op(a) op(b) + beta c; beta 0 overwrites whatever c held, NaN too.
template <class B, class T>
concept product_kernels = requires(B& backend, detail::arguments_of<B, T> x) {
  backend.template matmul<transpose::no, transpose::no>(x.in, x.in, x.out, x.factor);
  backend.template matmul<transpose::no, transpose::yes>(x.in, x.in, x.out, x.factor);
  backend.template matmul<transpose::yes, transpose::no>(x.in, x.in, x.out, x.factor);
  backend.template matmul<transpose::yes, transpose::yes>(x.in, x.in, x.out, x.factor);
} && offered<ops::add_bias, B, T> && offered<ops::add_bias_backward, B, T>;

/// Products of rows grouped by expert; group e is rows [offsets[e], offsets[e + 1]), which may be none.
/// `grouped_matmul<TB>(x, offsets, w, y, beta)`: y = x op(w[e]) + beta y in the rows of each group; the gradient of x is the
/// same call with dy and the other TB. `grouped_matmul_backward_weight(x, dy, offsets, dw, beta)`: dw[e] = x^T dy over
/// the rows of group e, + beta dw[e], of `sum_of_type<T>`. Rows in no group are left as they are.
template <class B, class T>
concept grouped_product_kernels = requires(B& backend, detail::arguments_of<B, T> x) {
  backend.template grouped_matmul<transpose::no>(x.in, x.offsets, x.stack_in, x.out, x.factor);
  backend.template grouped_matmul<transpose::yes>(x.in, x.offsets, x.stack_in, x.out, x.factor);
  backend.grouped_matmul_backward_weight(x.in, x.in, x.offsets, x.stack_out, x.factor);
};

/// `matmul<TA, TB>(a, b, c, beta)` of bf16 or f16 operands, added up in float, into c of float or of the same type (rounded
/// once). `half_product_name()`: by which library.
template <class B, class Half = bf16>
concept half_product_kernels =
    requires(B& backend, matrix_view<const Half, space_of<B>> in, matrix_view<Half, space_of<B>> out,
             matrix_view<float, space_of<B>> sums, float beta) {
      backend.template matmul<transpose::no, transpose::no>(in, in, sums, beta);
      backend.template matmul<transpose::no, transpose::yes>(in, in, sums, beta);
      backend.template matmul<transpose::yes, transpose::no>(in, in, sums, beta);
      backend.template matmul<transpose::no, transpose::no>(in, in, out, beta);
      backend.template matmul<transpose::no, transpose::yes>(in, in, out, beta);
      backend.template matmul<transpose::yes, transpose::no>(in, in, out, beta);
      { backend.half_product_name() } -> std::convertible_to<const char*>;
    };

/// The union of the facets that GPT-2's training uses, for elements of type T. New code asks for the facets of each layer
/// instead (`require_facet`). Empty matrices and vectors are legal everywhere. A backend object serves one rank: it is
/// called from one thread at a time.
template <class B, class T = float>
concept kernel_set =
    product_kernels<B, T> && elementwise_facet::offered<B, T> && layer_norm_facet::offered<B, T> &&
    attention_facet::offered<B, T> && embedding_facet::offered<B, T> && cross_entropy_facet::offered<B, T> &&
    offered<loss_facet, B, T> && offered<optimizer_facet, B, T> && requires(const B& backend) {
      { backend.threads() } -> std::same_as<int>;
      { backend.gemm_name() } -> std::convertible_to<const char*>;
    };

}  // namespace heddle::inline v0::compute

// heddle/compute/kernels.hpp: the facets of a compute backend, as concepts.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/ops/cache.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/embedding.hpp>
#include <heddle/compute/ops/images.hpp>
#include <heddle/compute/ops/optimizer.hpp>
#include <heddle/compute/ops/products.hpp>
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
  sum_of_type<T> factor{};
  row_view<const sum_of_type<T>, Space> sums{};
  row_view<sum_of_type<T>, Space> added{};
  head_rows<const T, Space> heads_in{};
  head_rows<T, Space> heads_out{};
  row_view<const attention_slice, Space> slices{};
  key_pages_in<Space> pages{};
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

/// Attention of any query rows to any key rows. `attention(q, k, v, slices, scale, out, lse, pages)`: out = softmax(scale q
/// k^T, over the keys that the slices give) v; query head h reads key-value head h * k.heads / q.heads. Several slices may
/// name one query; a pair of query and key is in one slice at most. A query that sees no key has out = 0, lse = -inf.
/// `attention_backward(dout, q, k, v, out, lse, slices, scale, dq, dk, dv, pages)` overwrites dq, dk and dv; out and lse
/// may be those of more keys than the slices have, as in context parallelism: the gradients then are these keys' shares.
/// Shapes: q, out [rows of queries, heads, head_dim], k [rows of keys, key-value heads, head_dim], v like k with a head_dim
/// of its own (that of out); lse [heads, rows of queries]. The scale and lse are `sum_of_type<T>`: float for elements of 16 bits.
/// Source: Dao et al. 2022, arXiv:2205.14135; Ainslie et al. 2023, arXiv:2305.13245 (grouped queries).
template <class B, class T>
concept sliced_attention_kernels = requires(B& backend, detail::arguments_of<B, T> x) {
  backend.attention(x.heads_in, x.heads_in, x.heads_in, x.slices, x.factor, x.heads_out, x.added, x.pages);
  backend.attention_backward(x.heads_in, x.heads_in, x.heads_in, x.heads_in, x.heads_in, x.sums, x.slices, x.factor,
                             x.heads_out, x.heads_out, x.heads_out, x.pages);
};

/// Causal self-attention. `attention(qkv, shape, out, lse)` keeps only the log-sum-exp of each row of scores;
/// `attention_backward(dout, qkv, out, lse, shape, dqkv)` overwrites dqkv.
/// Shapes: qkv [batch*sequence, 3*heads*head_dim] with columns q|k|v, each head-major; out [batch*sequence,
/// heads*head_dim]; lse [heads, batch*sequence] of `sum_of_type<T>`.
template <class B, class T>
concept attention_kernels = requires(B& backend, detail::arguments_of<B, T> x, attention_shape s) {
  backend.attention(x.in, s, x.out, x.added);
  backend.attention_backward(x.in, x.in, x.in, x.sums, s, x.out);
};

/// The union of the facets that GPT-2's training uses, for elements of type T. New code asks for the facets of each layer
/// instead (`require_facet`). Empty matrices and vectors are legal everywhere. A backend object serves one rank: it is
/// called from one thread at a time.
template <class B, class T = float>
concept kernel_set =
    product_facet::offered<B, T> && elementwise_facet::offered<B, T> && layer_norm_facet::offered<B, T> &&
    attention_kernels<B, T> && embedding_facet::offered<B, T> && cross_entropy_facet::offered<B, T> &&
    offered<loss_facet, B, T> && offered<optimizer_facet, B, T> && requires(const B& backend) {
      { backend.threads() } -> std::same_as<int>;
      { backend.gemm_name() } -> std::convertible_to<const char*>;
    };

}  // namespace heddle::inline v0::compute

// heddle/compute/kernels.hpp: the facets of a compute backend, as concepts.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/ops/attention.hpp>
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

/// The union of the facets that GPT-2's training uses, for elements of type T. New code asks for the facets of each layer
/// instead (`require_facet`). Empty matrices and vectors are legal everywhere. A backend object serves one rank: it is
/// called from one thread at a time.
template <class B, class T = float>
concept kernel_set =
    product_facet::offered<B, T> && elementwise_facet::offered<B, T> && layer_norm_facet::offered<B, T> &&
    attention_facet::offered<B, T> && embedding_facet::offered<B, T> && cross_entropy_facet::offered<B, T> &&
    offered<loss_facet, B, T> && offered<optimizer_facet, B, T> && requires(const B& backend) {
      { backend.threads() } -> std::same_as<int>;
      { backend.gemm_name() } -> std::convertible_to<const char*>;
    };

}  // namespace heddle::inline v0::compute

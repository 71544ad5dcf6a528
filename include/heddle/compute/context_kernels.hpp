// heddle/compute/context_kernels.hpp: the facet of backends that merge partial results of attention.
#pragma once

#include <heddle/compute/context_bodies.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {

/// What context parallelism needs beside attention of slices: `run_on_rows(backend, n, size, body)`, found by the backend's
/// namespace, is body(g, i) for each i in [0, n), in any order and at the same time, each by a group of threads g
/// (`detail::in_groups::row_threads`) that shares about `size` elements; in the order of the backend's queue. The body is copied;
/// its call operator is a function of host and device both, and `body.tensors()` are the tensors that it reads and writes.
/// `compute/host/merge_partials.hpp` and its neighbours have it for the backends.
template <class B, class T>
concept context_kernels =
    requires(B& backend, std::int64_t n, const detail::merged_heads<sum_of_type<T>, T, space_of<B>>& body) {
      run_on_rows(backend, n, n, body);
    };

/// `context_kernels` as a facet.
struct context_facet {
  template <class B, class T>
  static constexpr bool offered = context_kernels<B, T>;
};

/// Attention of the same queries to other keys is folded in: out and lse become those of all keys of both, `out = out exp(lse -
/// l) + more exp(more_lse - l)` with l the logarithm of the sum of both exponentials; a row without keys has lse -inf and changes
/// nothing. `M`: T, or its `sum_of_type` S.
/// Shapes: out, more [rows, heads, head_dim]; lse, more_lse [rows, heads].
/// Errors: `layout_error` if rows, heads or sizes differ. Source: Dao et al. 2022, arXiv:2205.14135, section 3.1.
template <class Backend, class S, class M, class Space>
  requires context_kernels<Backend, M>
void merge_partials(Backend& backend, head_rows<S, Space> out, head_numbers<S, Space> lse,
                    head_rows<const M, Space> more, head_numbers<const S, Space> more_lse) {
  if (out.rows != lse.rows || out.rows != more.rows || out.rows != more_lse.rows || out.heads != lse.heads ||
      out.heads != more.heads || out.heads != more_lse.heads || out.head_dim != more.head_dim)
    throw layout_error("heddle: merge_partials: " + std::to_string(out.rows) + " rows of " + std::to_string(out.heads) +
                       " heads of " + std::to_string(out.head_dim) + " should be merged with as many, got " +
                       std::to_string(more.rows) + " rows of " + std::to_string(more.heads) + " heads of " +
                       std::to_string(more.head_dim));
  if (out.rows * out.heads > 0)
    run_on_rows(backend, out.rows * out.heads, out.head_dim,
                detail::merged_heads<S, M, Space>{out, lse, more, more_lse});
}

}  // namespace heddle::inline v0::compute

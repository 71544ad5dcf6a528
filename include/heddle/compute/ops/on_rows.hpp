// heddle/compute/ops/on_rows.hpp: work on rows as an operation; merge of partial attention.
#pragma once

#include <heddle/compute/context_bodies.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {

namespace ops {
/// work(g, i) for each i in [0, n), in any order and at the same time, each by a group of threads g (`detail::in_groups::row_threads`)
/// that shares about `size` elements. The work is copied; its call operator is a function of host and device both, and
/// `work.tensors()` are the tensors that it reads and writes. Its bodies are in `compute/host/merge_partials.hpp` and its neighbours.
template <class Work>
struct on_rows : sized_operation {
  using work = Work;
  static constexpr const char* name = "on_rows";
  static constexpr const char* arguments[] = {"work", "n", "size"};
  using value_type = void;
  using dims = sizes<>;
  using takes = signature<value<Work>, index, index>;
  static void check(const auto&...) {}
};
}  // namespace ops

/// What context parallelism needs beside attention of slices.
struct context_facet {
  template <class B, class T>
  static constexpr bool offered =
      compute::offered<ops::on_rows<detail::merged_heads<sum_of_type<T>, T, space_of<B>>>, B, void>;
};

/// See `ops::on_rows`.
template <class B, class Work>
void run_on_rows(B& backend, std::int64_t n, std::int64_t size, const Work& work) {
  run<ops::on_rows<Work>>(backend, work, n, size);
}

/// Attention of the same queries to other keys is folded in: out and lse become those of all keys of both, `out = out exp(lse -
/// l) + more exp(more_lse - l)` with l the logarithm of the sum of both exponentials; a row without keys has lse -inf and changes
/// nothing. `M`: T, or its `sum_of_type` S.
/// Shapes: out, more [rows, heads, head_dim]; lse, more_lse [rows, heads].
/// Errors: `layout_error` if rows, heads or sizes differ. Source: Dao et al. 2022, arXiv:2205.14135, section 3.1.
template <class Backend, class S, class M, class Space>
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

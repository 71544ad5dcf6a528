// heddle/compute/context_kernels.hpp: the facet of backends that merge partial results of attention.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute {

/// One number for each row and head, such as the log-sum-exp of its scores: that of row r and head h lies at data + r *
/// row_stride + h * head_stride. Attention writes it with strides 1 and rows.
template <class T, memory_space Space = host_memory>
struct head_numbers {
  using space = Space;
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  constexpr T* at(std::int64_t r, std::int64_t head) const noexcept {
    return data + r * row_stride + head * head_stride;
  }
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_same_v<U, T>)
  constexpr operator head_numbers<U, Space>() const noexcept {
    return {data, rows, heads, row_stride, head_stride};
  }
};

/// Attention of the same queries to other keys is folded in. `merge_partials(backend, out, lse, more, more_lse)`, found
/// by the backend's namespace: out and lse become those of all keys of both, `out = out exp(lse - l) + more
/// exp(more_lse - l)` with l the logarithm of the sum of both exponentials; a row without keys has lse -inf and changes
/// nothing. `out`, `lse` and `more_lse` are `sum_of_type<T>`, `more` is that or T.
/// Shapes: out, more [rows, heads, head_dim]; lse, more_lse [rows, heads]. Source: Dao et al. 2022, arXiv:2205.14135,
/// section 3.1.
template <class B, class T>
concept context_kernels =
    requires(B& backend, head_rows<sum_of_type<T>, space_of<B>> out, head_numbers<sum_of_type<T>, space_of<B>> lse,
             head_rows<const T, space_of<B>> more, head_rows<const sum_of_type<T>, space_of<B>> sums,
             head_numbers<const sum_of_type<T>, space_of<B>> more_lse) {
      merge_partials(backend, out, lse, more, more_lse);
      merge_partials(backend, out, lse, sums, more_lse);
    };

/// `context_kernels` as a facet.
struct context_facet {
  template <class B, class T>
  static constexpr bool offered = context_kernels<B, T>;
};

namespace detail {

/// The log-sum-exp of both, and the shares of each.
template <class S>
struct merge_factors {
  static constexpr S nothing = -std::numeric_limits<S>::infinity();  ///< lse of a row without keys; device code reads it
  S lse, own, more;
};
/// One of the two has a key. The exponentials are taken relative to the larger log-sum-exp, so that none overflows.
template <class S>
HEDDLE_HD merge_factors<S> factors_of(S lse, S more_lse) {
  const S most = lse < more_lse ? more_lse : lse;
  const S both = most + std::log1p(std::exp((lse < more_lse ? lse : more_lse) - most));
  return {both, std::exp(lse - both), std::exp(more_lse - both)};
}
/// One row of one head.
template <class S, class M>
HEDDLE_HD void merge_head(S* out, S& lse, const M* more, S more_lse, std::int64_t size) {
  if (!((lse < more_lse ? more_lse : lse) > merge_factors<S>::nothing)) return;  // neither has a key
  const merge_factors<S> with = factors_of(lse, more_lse);
  for (std::int64_t i = 0; i < size; ++i) out[i] = out[i] * with.own + static_cast<S>(more[i]) * with.more;
  lse = with.lse;
}

template <class S, class M, class Space>
void check_partials(const head_rows<S, Space>& out, const head_numbers<S, Space>& lse,
                    const head_rows<const M, Space>& more, const head_numbers<const S, Space>& more_lse) {
  if (out.rows == lse.rows && out.rows == more.rows && out.rows == more_lse.rows && out.heads == lse.heads &&
      out.heads == more.heads && out.heads == more_lse.heads && out.head_dim == more.head_dim)
    return;
  throw layout_error("heddle: merge_partials: " + std::to_string(out.rows) + " rows of " + std::to_string(out.heads) +
                     " heads of " + std::to_string(out.head_dim) + " should be merged with as many, got " +
                     std::to_string(more.rows) + " rows of " + std::to_string(more.heads) + " heads of " +
                     std::to_string(more.head_dim));
}

}  // namespace detail

}  // namespace heddle::inline v0::compute

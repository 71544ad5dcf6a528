// heddle/compute/context_bodies.hpp: bodies of kernels for context parallelism.
#pragma once

#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/core/config.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
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

namespace detail {

// Bodies for `run_on_rows`: body(g, i) by a group of threads; `tensors()` are those that it reads and writes. Device code calls no
// member functions of these.

template <class T, class Space>
HEDDLE_HD T* row_of(const head_rows<T, Space>& x, std::int64_t r) {
  return x.data + r * x.stride;
}
template <class T, class Space>
HEDDLE_HD T& number_of(const head_numbers<T, Space>& x, std::int64_t i) {
  return x.data[i / x.heads * x.row_stride + i % x.heads * x.head_stride];
}
// Item i of rows * heads.
template <class T, class Space>
HEDDLE_HD T* head_of(const head_rows<T, Space>& x, std::int64_t i) {
  return x.data + i / x.heads * x.stride + i % x.heads * x.head_dim;
}

/// Rows [rows * heads]: partial results are merged, see `merge_partials`.
template <class S, class M, class Space>
struct merged_heads {
  static constexpr S nothing =
      -std::numeric_limits<S>::infinity();  ///< lse of a row without keys; device code reads it
  head_rows<S, Space> out;
  head_numbers<S, Space> lse;
  head_rows<const M, Space> more;
  head_numbers<const S, Space> more_lse;
  auto tensors() const { return std::tuple(out, lse, more, more_lse); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    S& own = number_of(lse, i);
    const S before = own, other = number_of(more_lse, i);
    // All threads of the group have read the number before one of them writes it.
    const S most = g.largest(before < other ? other : before);
    if (!(most > nothing)) return;  // neither has a key
    // Relative to the larger of the two, so that no exponential overflows.
    const S both = most + std::log1p(std::exp((before < other ? before : other) - most));
    const S mine = std::exp(before - both), theirs = std::exp(other - both);
    S* const to = head_of(out, i);
    const M* const from = head_of(more, i);
    in_groups::for_each_of(g, out.head_dim,
                           [&](std::int64_t c) { to[c] = to[c] * mine + static_cast<S>(from[c]) * theirs; });
    if (g.leads()) own = both;
  }
};
/// Rows [rows]: to = from, rounded to the nearest where elements are shorter.
template <class A, class B, class Space>
struct copied_rows {
  head_rows<const A, Space> from;
  head_rows<B, Space> to;
  auto tensors() const { return std::tuple(from, to); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    const A* const a = row_of(from, r);
    B* const b = row_of(to, r);
    in_groups::for_each_of(g, to.heads * to.head_dim, [&](std::int64_t c) { b[c] = static_cast<B>(a[c]); });
  }
};
/// Rows [rows]: to += from.
template <class A, class S, class Space>
struct added_rows {
  head_rows<const A, Space> from;
  head_rows<S, Space> to;
  auto tensors() const { return std::tuple(from, to); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    const A* const a = row_of(from, r);
    S* const b = row_of(to, r);
    in_groups::for_each_of(g, to.heads * to.head_dim, [&](std::int64_t c) { b[c] += static_cast<S>(a[c]); });
  }
};
/// Rows [rows]: to = 0.
template <class S, class Space>
struct cleared_rows {
  head_rows<S, Space> to;
  auto tensors() const { return std::tuple(to); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    S* const b = row_of(to, r);
    in_groups::for_each_of(g, to.heads * to.head_dim, [&](std::int64_t c) { b[c] = S(0); });
  }
};
/// Rows [rows]: numbers of a row are copied.
template <class S, class Space>
struct copied_numbers {
  head_numbers<const S, Space> from;
  head_numbers<S, Space> to;
  auto tensors() const { return std::tuple(from, to); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    const S* const a = from.data + r * from.row_stride;
    S* const b = to.data + r * to.row_stride;
    in_groups::for_each_of(g, to.heads, [&](std::int64_t h) { b[h * to.head_stride] = a[h * from.head_stride]; });
  }
};
/// Rows [rows]: numbers of a row become `value`.
template <class S, class Space>
struct filled_numbers {
  S value;
  head_numbers<S, Space> to;
  auto tensors() const { return std::tuple(to); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    S* const b = to.data + r * to.row_stride;
    in_groups::for_each_of(g, to.heads, [&](std::int64_t h) { b[h * to.head_stride] = value; });
  }
};
/// Rows [rows * heads]: to = the product of a head of `a` and one of `b`.
template <class T, class S, class Space>
struct products_of_heads {
  head_rows<const T, Space> a, b;
  head_numbers<S, Space> to;
  auto tensors() const { return std::tuple(a, b, to); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const x = head_of(a, i), *const y = head_of(b, i);
    const S product = in_groups::sum_over(
        g, a.head_dim, [&](std::int64_t c) -> S { return static_cast<S>(x[c]) * static_cast<S>(y[c]); });
    if (g.leads()) number_of(to, i) = product;
  }
};
/// Rows [rows * heads]: an output whose product with its gradient is the given one, for kernels that take the output itself: it
/// is no longer than the output was, by Cauchy and Schwarz. Gradients are scaled by the largest of them, as squares of small
/// ones are zero.
template <class T, class S, class Space>
struct outputs_of_products {
  head_rows<const T, Space> gradient;
  head_numbers<const S, Space> product;
  head_rows<T, Space> out;
  auto tensors() const { return std::tuple(gradient, product, out); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const from = head_of(gradient, i);
    T* const to = head_of(out, i);
    S most = 0;
    in_groups::for_each_of(g, out.head_dim, [&](std::int64_t c) {
      const S x = static_cast<S>(from[c]), size = x < 0 ? -x : x;
      most = most < size ? size : most;
    });
    most = g.largest(most);
    if (!(most > 0)) {
      in_groups::for_each_of(g, out.head_dim, [&](std::int64_t c) { to[c] = T(0); });
      return;
    }
    const S squares = in_groups::sum_over(g, out.head_dim, [&](std::int64_t c) -> S {
      const S x = static_cast<S>(from[c]) / most;
      return x * x;
    });
    const S factor = number_of(product, i) / most / squares;
    in_groups::for_each_of(g, out.head_dim,
                           [&](std::int64_t c) { to[c] = static_cast<T>(static_cast<S>(from[c]) / most * factor); });
  }
};

}  // namespace detail

}  // namespace heddle::inline v0::compute

// heddle/compute/argument_checks.hpp: checks of sizes and indices, shared by the kernels of all backends.
#pragma once

#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::compute::detail {

/// None without `checks_arguments`. Each throws a `layout_error` that names the kernel, the argument, what was expected and what came.
struct argument_checks {
  template <class T>
  static void same_shape(const char* kernel, const char* what, matrix_view<const T> x, matrix_view<const T> y) {
    if constexpr (!checks_arguments) return;
    if (x.extent(0) != y.extent(0) || x.extent(1) != y.extent(1)) [[unlikely]]
      wrong_shape(kernel, what, {x.extent(0), x.extent(1)}, {y.extent(0), y.extent(1)});
  }
  static void choices(const char* kernel, std::int64_t tokens, std::int64_t experts,
                      matrix_view<const std::int32_t> ids, std::int64_t rows, std::int64_t columns) {
    if constexpr (!checks_arguments) return;
    expect(kernel, "rows of ids", tokens, ids.extent(0));
    expect(kernel, "rows of weights", tokens, rows);
    expect(kernel, "columns of weights", ids.extent(1), columns);
    expect_choices(kernel, ids.extent(1), experts);
  }
  static void within(const char* kernel, const char* what, token_ids values, std::int64_t first, std::int64_t end) {
    indices_within(kernel, what, values, first, end);
  }
  template <class T>
  static void same_heads(const char* kernel, const char* what, const head_rows<const T>& x,
                         const head_rows<const T>& y) {
    if constexpr (!checks_arguments) return;
    if (x.rows != y.rows || x.heads != y.heads || x.head_dim != y.head_dim || y.stride < y.width()) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be " + heads_text(x) +
                         " with its rows apart, got " + heads_text(y) + ", rows " + std::to_string(y.stride) +
                         " elements apart");
  }
  template <class T>
  static std::string heads_text(const head_rows<T>& x) {
    return std::to_string(x.rows) + " rows of " + std::to_string(x.heads) + " heads of " + std::to_string(x.head_dim);
  }
  template <class T>
  static void attention_arguments(const char* kernel, const head_rows<const T>& q, const head_rows<const T>& k,
                                  const head_rows<const T>& v, std::span<const attention_slice> slices,
                                  sum_of_type<T> scale, const head_rows<const T>& out, std::size_t lse,
                                  const key_pages& pages) {
    if constexpr (!checks_arguments) return;
    const auto wrong = [kernel](const std::string& text) {
      throw layout_error("heddle: " + std::string(kernel) + ": " + text);
    };
    expect(kernel, "columns of a head of k", q.head_dim, k.head_dim);
    expect(kernel, "rows of v", k.rows, v.rows);
    expect(kernel, "heads of v", k.heads, v.heads);
    expect(kernel, "rows of out", q.rows, out.rows);
    expect(kernel, "heads of out", q.heads, out.heads);
    expect(kernel, "columns of a head of out", v.head_dim, out.head_dim);
    expect(kernel, "elements of lse (heads * rows of queries)", q.heads * q.rows, lse);
    if (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0) [[unlikely]]
      wrong("heads of q should be a multiple of the " + std::to_string(k.heads) + " heads of k, got " +
            std::to_string(q.heads));
    if (!(scale > 0) || !std::isfinite(scale)) [[unlikely]]
      wrong("the scale of scores should be a positive number, got " + number_text(scale));
    rows_apart(kernel, "q", q);
    rows_apart(kernel, "k", k);
    rows_apart(kernel, "v", v);
    rows_apart(kernel, "out", out);
    std::int64_t keys = k.rows;
    if (pages.page_rows == 0 && !pages.pages.empty()) [[unlikely]]
      wrong("a table of " + std::to_string(pages.pages.size()) + " pages needs the number of rows in a page, got 0");
    if (pages.page_rows != 0) {
      if (pages.page_rows < 0 || k.rows % pages.page_rows != 0) [[unlikely]]
        wrong("the " + std::to_string(k.rows) + " rows of k should be whole pages, got pages of " +
              std::to_string(pages.page_rows) + " rows");
      for (const std::int32_t page : pages.pages)
        if (page < 0 || page >= k.rows / pages.page_rows) [[unlikely]]
          wrong("pages should be from 0 to " + std::to_string(k.rows / pages.page_rows - 1) + ", got " +
                std::to_string(page));
      keys = static_cast<std::int64_t>(pages.pages.size()) * pages.page_rows;
    }
    for (const attention_slice& s : slices)
      if (s.q_begin < 0 || s.q_begin > s.q_end || s.q_end > q.rows || s.k_begin < 0 || s.k_begin > s.k_end ||
          s.k_end > keys) [[unlikely]]
        wrong("slices should lie in " + std::to_string(q.rows) + " queries by " + std::to_string(keys) + " keys, got " +
              to_string(s));
  }
  template <class T>
  static void attention_sizes(const char* kernel, const attention_shape& s, matrix_view<const T> qkv,
                              matrix_view<const T> out, std::size_t lse) {
    if constexpr (!checks_arguments) return;
    expect(kernel, "rows of qkv (batch * sequence)", s.rows(), qkv.extent(0));
    expect(kernel, "columns of qkv (3 * heads * head_dim)", 3 * s.width(), qkv.extent(1));
    expect(kernel, "rows of out (batch * sequence)", s.rows(), out.extent(0));
    expect(kernel, "columns of out (heads * head_dim)", s.width(), out.extent(1));
    expect(kernel, "elements of lse (heads * batch * sequence)", s.rows() * s.heads, lse);
  }
};

}  // namespace heddle::inline v0::compute::detail

// heddle/compute/impl/ops/attention.hpp: bodies of heddle/compute/ops/attention.hpp.
#pragma once

#include <heddle/compute/check.hpp>
#include <heddle/compute/ops/attention.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::compute::detail {

[[noreturn]] inline void wrong_attention(const char* name, const std::string& text) {
  throw layout_error("heddle: " + std::string(name) + ": " + text);
}

// One head lies by row and by head.
inline bool lies_by_head(const any_heads& x) {
  return x.heads > 1 && x.lies_by_head();
}

HEDDLE_INLINE void check_attention(const char* name, const any_heads& q, const any_heads& k, const any_heads& v,
                                   std::size_t slices, double scale, bool is_float, const any_heads& out,
                                   std::size_t lse, const key_pages& pages) {
  struct {
    const char* what;
    std::int64_t expected, got;
  } const sizes[] = {{"columns of a head of k", q.head_dim, k.head_dim},
                     {"rows of v", k.rows, v.rows},
                     {"heads of v", k.heads, v.heads},
                     {"rows of out", q.rows, out.rows},
                     {"heads of out", q.heads, out.heads},
                     {"columns of a head of out", v.head_dim, out.head_dim},
                     {"elements of lse (heads * rows of queries)", q.heads * q.rows, static_cast<std::int64_t>(lse)}};
  for (const auto& s : sizes) expect(name, s.what, s.expected, s.got);
  if (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0) [[unlikely]]
    wrong_attention(name, "heads of q should be a multiple of the " + std::to_string(k.heads) + " heads of k, got " +
                              std::to_string(q.heads));
  if (!(scale > 0) || !std::isfinite(scale)) [[unlikely]]
    wrong_attention(name, "the scale of scores should be a positive number, got " +
                              (is_float ? number_text(static_cast<float>(scale)) : number_text(scale)));
  rows_apart(name, "q", q);
  rows_apart(name, "k", k);
  rows_apart(name, "v", v);
  rows_apart(name, "out", out);
  if (lies_by_head(q) || lies_by_head(out)) [[unlikely]]
    wrong_attention(name, "queries and results should lie row by row, got blocks by head");
  for (const any_heads* const x : {&k, &v})
    if (lies_by_head(*x) && (x->stride != x->head_dim || x->stride == 0 || x->head_step % x->stride != 0 ||
                             pages.page_rows <= 0 || x->head_step / x->stride % pages.page_rows != 0)) [[unlikely]]
      wrong_attention(name, "keys and values by head should be whole pages of rows that are " +
                                std::to_string(x->head_dim) + " elements apart, got blocks of " +
                                std::to_string(x->head_step) + " elements a head, rows " + std::to_string(x->stride) +
                                " apart, in pages of " + std::to_string(pages.page_rows) + " rows");
  if (pages.page_rows == 0 && !pages.pages.empty()) [[unlikely]]
    wrong_attention(
        name, "a table of " + std::to_string(pages.pages.size()) + " pages needs the number of rows in a page, got 0");
  if (pages.page_rows != 0 && (pages.page_rows < 0 || k.rows % pages.page_rows != 0)) [[unlikely]]
    wrong_attention(name, "the " + std::to_string(k.rows) + " rows of k should be whole pages, got pages of " +
                              std::to_string(pages.page_rows) + " rows");
  if (pages.most_keys > 0 && !pages.few_rows.empty() &&
      (pages.few_slices < 0 || pages.few_slices > static_cast<std::int64_t>(slices))) [[unlikely]]
    wrong_attention(name, "the slices of few queries should be some of " + std::to_string(slices) + ", got " +
                              std::to_string(pages.few_slices));
}

HEDDLE_INLINE void check_cap(const char* name, double cap) {
  if (!(cap > 0) || !std::isfinite(cap)) [[unlikely]]
    wrong_attention(name, "the cap of scores should be a positive number, got " + number_text(cap));
}

HEDDLE_INLINE void check_sinks(const char* name, const any_heads& x, std::size_t sinks, std::size_t lse) {
  expect(name, "elements of sinks (heads)", x.heads, static_cast<std::int64_t>(sinks));
  expect(name, "elements of lse (heads * rows)", x.heads * x.rows, static_cast<std::int64_t>(lse));
  rows_apart(name, "out", x);
  if (lies_by_head(x)) [[unlikely]]
    wrong_attention(name, "heads should lie row by row, got blocks by head");
}

HEDDLE_INLINE void check_lies_by_row(const char* name, const any_heads& k, const any_heads& v) {
  if (lies_by_head(k) || lies_by_head(v)) [[unlikely]]
    wrong_attention(name, "keys and values should lie row by row, got blocks by head");
}

HEDDLE_INLINE void check_same_heads(const char* name, const char* what, const any_heads& x, const any_heads& y) {
  if (x.rows == y.rows && x.heads == y.heads && x.head_dim == y.head_dim && y.stride >= y.width()) [[likely]]
    return;
  const auto text = [](const any_heads& h) {
    return std::to_string(h.rows) + " rows of " + std::to_string(h.heads) + " heads of " + std::to_string(h.head_dim);
  };
  wrong_attention(name, what + (" should be " + text(x)) + " with its rows apart, got " + text(y) + ", rows " +
                            std::to_string(y.stride) + " elements apart");
}

HEDDLE_INLINE void check_seen(const char* name, std::int64_t queries, std::int64_t key_rows,
                              std::span<const attention_slice> slices, const key_pages& pages) {
  std::int64_t keys = key_rows;
  if (pages.page_rows != 0) {
    for (const std::int32_t page : pages.pages)
      if (page < 0 || page >= key_rows / pages.page_rows) [[unlikely]]
        wrong_attention(name, "pages should be from 0 to " + std::to_string(key_rows / pages.page_rows - 1) + ", got " +
                                  std::to_string(page));
    keys = static_cast<std::int64_t>(pages.pages.size()) * pages.page_rows;
  }
  for (const attention_slice& s : slices)
    if (s.q_begin < 0 || s.q_begin > s.q_end || s.q_end > queries || s.k_begin < 0 || s.k_begin > s.k_end ||
        s.k_end > keys) [[unlikely]]
      wrong_attention(name, "slices should lie in " + std::to_string(queries) + " queries by " + std::to_string(keys) +
                                " keys, got " + to_string(s));
}

HEDDLE_INLINE void check_causal_attention(const char* name, const attention_shape& s, dynamic_shape<2> qkv,
                                          dynamic_shape<2> out, std::size_t lse) {
  expect(name, "rows of qkv (batch * sequence)", s.rows(), qkv.extent(0));
  expect(name, "columns of qkv (3 * heads * head_dim)", 3 * s.width(), qkv.extent(1));
  expect(name, "rows of out (batch * sequence)", s.rows(), out.extent(0));
  expect(name, "columns of out (heads * head_dim)", s.width(), out.extent(1));
  expect(name, "elements of lse (heads * batch * sequence)", s.rows() * s.heads, lse);
}

HEDDLE_INLINE void check_same_shape(const char* name, const char* what, dynamic_shape<2> x, dynamic_shape<2> y) {
  if (x.extent(0) != y.extent(0) || x.extent(1) != y.extent(1)) [[unlikely]]
    wrong_shape(name, what, {x.extent(0), x.extent(1)}, {y.extent(0), y.extent(1)});
}

}  // namespace heddle::inline v0::compute::detail

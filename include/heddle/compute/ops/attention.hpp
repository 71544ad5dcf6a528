// heddle/compute/ops/attention.hpp: attention as operations: masks, grouped heads, pages.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::compute {
namespace detail {

// Rows of heads of any type: for checks, which look at no element.
using any_heads = head_rows<const std::byte>;
template <class T>
constexpr any_heads sizes_of(const head_rows<T>& x) noexcept {
  return {nullptr, x.rows, x.heads, x.head_dim, x.stride, x.head_step};
}
// Errors of these: `layout_error`.
HEDDLE_INLINE void check_attention(const char* name, const any_heads& q, const any_heads& k, const any_heads& v,
                                   std::size_t slices, double scale, bool is_float, const any_heads& out,
                                   std::size_t lse, const key_pages& pages);
HEDDLE_INLINE void check_cap(const char* name, double cap);
HEDDLE_INLINE void check_sinks(const char* name, const any_heads& x, std::size_t sinks, std::size_t lse);
HEDDLE_INLINE void check_lies_by_row(const char* name, const any_heads& k, const any_heads& v);
HEDDLE_INLINE void check_same_heads(const char* name, const char* what, const any_heads& x, const any_heads& y);
HEDDLE_INLINE void check_seen(const char* name, std::int64_t queries, std::int64_t key_rows,
                              std::span<const attention_slice> slices, const key_pages& pages);
HEDDLE_INLINE void check_causal_attention(const char* name, const attention_shape& s, dynamic_shape<2> qkv,
                                          dynamic_shape<2> out, std::size_t lse);
HEDDLE_INLINE void check_same_shape(const char* name, const char* what, dynamic_shape<2> x, dynamic_shape<2> y);

/// The log-sum-exp of scores whose own is `level`, -inf where there is none, and of a sink. Relative to the larger: no exponential overflows.
template <class S>
HEDDLE_HD S level_with_sink(S level, S sink) {
  const S most = level < sink ? sink : level, least = level < sink ? level : sink;
  return most + std::log1p(std::exp(least - most));
}

}  // namespace detail

namespace ops {
struct keys {};           ///< a dimension: rows of keys and values
struct key_heads {};      ///< heads of keys and values: a divisor of the heads of queries
struct value_columns {};  ///< elements of a head of values and of the result
struct slices {};         ///< slices of a mask

/// The base of operations of attention.
struct attention_operation : sized_operation {};
/// The name of the operation, and that of its kernels in tools.
template <bool Back>
struct attention_named : attention_operation {
  static constexpr const char* name = Back ? "attention_backward" : "attention";
  static constexpr const char* label = Back ? "heddle::attention_backward" : "heddle::attention";
};

/// out = softmax(scale q k^T, over the keys that the slices give) v; query head h reads key-value head h * k.heads / q.heads.
/// Several slices may name one query; a pair of query and key is in one slice at most. A query that sees no key has
/// out = 0, lse = -inf. Queries of which `pages` says that they are few of their sequence may be computed in parts of their keys.
/// Shapes: lse [heads, rows of queries], the log-sum-exp of scores. It and the scale are `sum_of_type<T>`: float for elements of 16 bits.
/// Errors: `layout_error` if sizes differ; for slices and pages outside of queries and keys, where the host can read them.
/// Source: Dao et al. 2022, arXiv:2205.14135; Ainslie et al. 2023, arXiv:2305.13245 (grouped queries).
struct attention : attention_named<false> {
  static constexpr const char* arguments[] = {"q", "k", "v", "slices", "scale", "out", "lse", "pages"};
  static constexpr std::size_t mask_argument = 3;
  using dims = sizes<rows, heads, columns, keys, key_heads, value_columns, slices>;
  using takes = signature<in_heads<rows, heads, columns>, in_heads<keys, key_heads, columns>,
                          in_heads<keys, key_heads, value_columns>, sized_row<in_of<attention_slice, slices>>, number,
                          out_heads<rows, heads, value_columns>, sized_row<out_sums<heads, rows>>, pages>;
  /// Of so many pairs of a query and a key that it sees.
  static constexpr std::int64_t flops(const dims& n, std::int64_t pairs) {
    return 2 * pairs * n[heads{}] * (n[columns{}] + n[value_columns{}]);
  }
  static void check(const auto& q, const auto& k, const auto& v, const auto& seen, auto scale, const auto& out,
                    const auto& lse, const key_pages& where) {
    detail::check_attention(name, detail::sizes_of(q), detail::sizes_of(k), detail::sizes_of(v), seen.size(), scale,
                            sizeof(scale) == sizeof(float), detail::sizes_of(out), lse.size(), where);
  }
  static void check_values(const auto& q, const auto& k, const auto&, std::span<const attention_slice> seen, auto,
                           const auto&, const auto&, const key_pages& where) {
    detail::check_seen(name, q.rows, k.rows, seen, where);
  }
};
/// Overwrites dq, dk and dv. out and lse may be those of more keys than the slices have, as in context parallelism: the
/// gradients then are these keys' shares.
struct attention_backward : attention_named<true> {
  static constexpr const char* arguments[] = {"dout",   "q",     "k",  "v",  "out", "lse",
                                              "slices", "scale", "dq", "dk", "dv",  "pages"};
  static constexpr std::size_t mask_argument = 6;
  using dims = attention::dims;
  using takes = signature<in_heads<rows, heads, value_columns>, in_heads<rows, heads, columns>,
                          in_heads<keys, key_heads, columns>, in_heads<keys, key_heads, value_columns>,
                          in_heads<rows, heads, value_columns>, sized_row<in_sums<heads, rows>>,
                          sized_row<in_of<attention_slice, slices>>, number, out_heads<rows, heads, columns>,
                          out_heads<keys, key_heads, columns>, out_heads<keys, key_heads, value_columns>, pages>;
  /// The four products that a backward needs, not the scores that kernels compute again.
  static constexpr std::int64_t flops(const dims& n, std::int64_t pairs) { return 2 * attention::flops(n, pairs); }
  // Named types: nvcc 13.0 ends with an internal error at eleven placeholders.
  template <class Dout, class Q, class K, class V, class Out, class Lse, class Seen, class Scale, class Dq, class Dk,
            class Dv>
  static void check(const Dout& dout, const Q& q, const K& k, const V& v, const Out& out, const Lse& lse,
                    const Seen& seen, Scale scale, const Dq& dq, const Dk& dk, const Dv& dv, const key_pages& where) {
    detail::check_attention(name, detail::sizes_of(q), detail::sizes_of(k), detail::sizes_of(v), seen.size(), scale,
                            sizeof(scale) == sizeof(float), detail::sizes_of(out), lse.size(), where);
    detail::check_lies_by_row(name, detail::sizes_of(k), detail::sizes_of(v));
    detail::check_same_heads(name, "dout", detail::sizes_of(out), detail::sizes_of(dout));
    detail::check_same_heads(name, "dq", detail::sizes_of(q), detail::sizes_of(dq));
    detail::check_same_heads(name, "dk", detail::sizes_of(k), detail::sizes_of(dk));
    detail::check_same_heads(name, "dv", detail::sizes_of(v), detail::sizes_of(dv));
  }
  template <class Dout, class Q, class K, class V, class Out, class Lse, class Scale, class Dq, class Dk, class Dv>
  static void check_values(const Dout&, const Q& q, const K& k, const V&, const Out&, const Lse&,
                           std::span<const attention_slice> seen, Scale, const Dq&, const Dk&, const Dv&,
                           const key_pages& where) {
    detail::check_seen(name, q.rows, k.rows, seen, where);
  }
};

/// `attention` of scores that a cap keeps below it: cap tanh(scale q k^T / cap) in place of scale q k^T.
/// Source: Gemma Team 2024, arXiv:2408.00118, section 2 (logit soft-capping).
struct capped_attention : attention_operation {
  static constexpr const char* name = "capped_attention";
  static constexpr const char* label = "heddle::capped_attention";
  static constexpr const char* arguments[] = {"q", "k", "v", "slices", "scale", "cap", "out", "lse", "pages"};
  static constexpr std::size_t mask_argument = 3;
  using dims = attention::dims;
  using takes = signature<in_heads<rows, heads, columns>, in_heads<keys, key_heads, columns>,
                          in_heads<keys, key_heads, value_columns>, sized_row<in_of<attention_slice, slices>>, number,
                          number, out_heads<rows, heads, value_columns>, sized_row<out_sums<heads, rows>>, pages>;
  static constexpr std::int64_t flops(const dims& n, std::int64_t pairs) { return attention::flops(n, pairs); }
  static void check(const auto& q, const auto& k, const auto& v, const auto& seen, auto scale, auto cap,
                    const auto& out, const auto& lse, const key_pages& where) {
    detail::check_attention(name, detail::sizes_of(q), detail::sizes_of(k), detail::sizes_of(v), seen.size(), scale,
                            sizeof(scale) == sizeof(float), detail::sizes_of(out), lse.size(), where);
    detail::check_cap(name, cap);
  }
  static void check_values(const auto& q, const auto& k, const auto&, std::span<const attention_slice> seen, auto, auto,
                           const auto&, const auto&, const key_pages& where) {
    detail::check_seen(name, q.rows, k.rows, seen, where);
  }
};
/// As `attention_backward`.
struct capped_attention_backward : attention_operation {
  static constexpr const char* name = "capped_attention_backward";
  static constexpr const char* label = "heddle::capped_attention_backward";
  static constexpr const char* arguments[] = {"dout",  "q",   "k",  "v",  "out", "lse",  "slices",
                                              "scale", "cap", "dq", "dk", "dv",  "pages"};
  static constexpr std::size_t mask_argument = 6;
  using dims = attention::dims;
  using takes = signature<in_heads<rows, heads, value_columns>, in_heads<rows, heads, columns>,
                          in_heads<keys, key_heads, columns>, in_heads<keys, key_heads, value_columns>,
                          in_heads<rows, heads, value_columns>, sized_row<in_sums<heads, rows>>,
                          sized_row<in_of<attention_slice, slices>>, number, number, out_heads<rows, heads, columns>,
                          out_heads<keys, key_heads, columns>, out_heads<keys, key_heads, value_columns>, pages>;
  static constexpr std::int64_t flops(const dims& n, std::int64_t pairs) { return attention_backward::flops(n, pairs); }
  template <class Dout, class Q, class K, class V, class Out, class Lse, class Seen, class Scale, class Dq, class Dk,
            class Dv>
  static void check(const Dout& dout, const Q& q, const K& k, const V& v, const Out& out, const Lse& lse,
                    const Seen& seen, Scale scale, Scale cap, const Dq& dq, const Dk& dk, const Dv& dv,
                    const key_pages& where) {
    attention_backward::check(dout, q, k, v, out, lse, seen, scale, dq, dk, dv, where);
    detail::check_cap(name, cap);
  }
  template <class Dout, class Q, class K, class V, class Out, class Lse, class Scale, class Dq, class Dk, class Dv>
  static void check_values(const Dout&, const Q& q, const K& k, const V&, const Out&, const Lse&,
                           std::span<const attention_slice> seen, Scale, Scale, const Dq&, const Dk&, const Dv&,
                           const key_pages& where) {
    detail::check_seen(name, q.rows, k.rows, seen, where);
  }
};

/// Attention with a sink for each head: one more score, that many for each query, which the soft-max counts and which has no value. Turns `out` and
/// lse of attention without sinks into those with them: x exp(lse - l), l = log(exp(lse) + exp(sink)). With these the operations of its gradients
/// give those of queries, keys and values.
/// Shapes: x, y [rows, heads, value_columns], y may be x; sinks [heads]; lse [heads, rows].
/// Errors: `layout_error` if sizes differ.
/// Source: OpenAI 2025, arXiv:2508.10925, section 2.3; Xiao et al. 2023, arXiv:2309.17453, section 3 (a learned sink without a value); Hugging Face
/// `GptOssAttention`.
struct attention_sinks : attention_operation {
  static constexpr const char* name = "attention_sinks";
  static constexpr const char* label = "heddle::attention_sinks";
  static constexpr const char* arguments[] = {"x", "sinks", "lse", "y"};
  using dims = sizes<rows, heads, value_columns>;
  using takes = signature<in_heads<rows, heads, value_columns>, sized_row<in<heads>>,
                          sized_row<inout_sums<heads, rows>>, out_heads<rows, heads, value_columns>>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
  static void check(const auto& x, const auto& sinks, const auto& lse, const auto& y) {
    detail::check_sinks(name, detail::sizes_of(x), sinks.size(), lse.size());
    detail::check_same_heads(name, "y", detail::sizes_of(x), detail::sizes_of(y));
  }
};
/// What each row gives to the gradient of its head's sink, -exp(sink - lse) (dout . out), with out and lse as `attention_sinks` made them. That gradient is
/// the sum over rows, as that of a bias (`add_bias_backward`).
/// Shapes: terms [rows, heads].
struct attention_sinks_backward : attention_operation {
  static constexpr const char* name = "attention_sinks_backward";
  static constexpr const char* label = "heddle::attention_sinks_backward";
  static constexpr const char* arguments[] = {"dout", "out", "sinks", "lse", "terms"};
  using dims = attention_sinks::dims;
  using takes = signature<in_heads<rows, heads, value_columns>, in_heads<rows, heads, value_columns>,
                          sized_row<in<heads>>, sized_row<in_sums<heads, rows>>, sized<out<rows, heads>>>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n.product(); }
  static void check(const auto& dout, const auto& out, const auto& sinks, const auto& lse, const auto& terms) {
    detail::check_sinks(name, detail::sizes_of(out), sinks.size(), lse.size());
    detail::check_same_heads(name, "dout", detail::sizes_of(out), detail::sizes_of(dout));
    detail::check_same_shape(name, "terms", dynamic_shape<2>(out.rows, out.heads), terms.shape());
  }
};

struct statistics {};  ///< a dimension: log-sum-exps, of heads * rows
struct widths {};      ///< columns of the result: heads * head_dim

/// Causal self-attention of sequences of one length that lie one behind the other, with scores scaled by 1 / sqrt(head_dim); lse as of `attention`.
/// Shapes: qkv [batch * sequence, 3 * heads * head_dim] with columns q|k|v, each head-major; out [batch * sequence, heads * head_dim].
struct causal_attention : attention_named<false> {
  static constexpr const char* arguments[] = {"qkv", "shape", "out", "lse"};
  static constexpr std::size_t mask_argument = 1;
  using dims = sizes<rows, columns, widths, statistics>;
  using takes = signature<sized<in<rows, columns>>, value<attention_shape>, sized<out<rows, widths>>,
                          sized_row<out_sums<statistics>>>;
  static constexpr std::int64_t flops(const dims& n, std::int64_t pairs) { return 4 * pairs * n[widths{}]; }
  static void check(const auto& qkv, const attention_shape& s, const auto& out, const auto& lse) {
    detail::check_causal_attention(name, s, qkv.shape(), out.shape(), lse.size());
  }
};
/// Overwrites dqkv.
struct causal_attention_backward : attention_named<true> {
  static constexpr const char* arguments[] = {"dout", "qkv", "out", "lse", "shape", "dqkv"};
  static constexpr std::size_t mask_argument = 4;
  using dims = causal_attention::dims;
  using takes = signature<sized<in<rows, widths>>, sized<in<rows, columns>>, sized<in<rows, widths>>,
                          sized_row<in_sums<statistics>>, value<attention_shape>, sized<out<rows, columns>>>;
  static constexpr std::int64_t flops(const dims& n, std::int64_t pairs) { return 8 * pairs * n[widths{}]; }
  static void check(const auto& dout, const auto& qkv, const auto& out, const auto& lse, const attention_shape& s,
                    const auto& dqkv) {
    detail::check_causal_attention(name, s, qkv.shape(), out.shape(), lse.size());
    detail::check_same_shape(name, "dout", out.shape(), dout.shape());
    detail::check_same_shape(name, "dqkv", qkv.shape(), dqkv.shape());
  }
};
}  // namespace ops

namespace detail {
/// q, k or v of a product of all three.
template <class T>
head_rows<T> third_of(matrix_view<T> qkv, const attention_shape& s, std::int64_t i) {
  return heads_of(qkv, s.heads, s.head_dim, i * s.width());
}
template <class S>
S score_scale(const attention_shape& s) {
  return s.head_dim == 0 ? S(1) : S(1) / std::sqrt(static_cast<S>(s.head_dim));
}
}  // namespace detail

/// Causal attention over q, k and v side by side.
struct attention_facet : operations<ops::causal_attention, ops::causal_attention_backward> {};
/// Attention over slices of queries and keys.
struct sliced_attention_facet : operations<ops::attention, ops::attention_backward> {};
/// Sinks of its heads.
struct attention_sinks_facet : operations<ops::attention_sinks, ops::attention_sinks_backward> {};
/// The same with scores below a cap.
struct capped_attention_facet : operations<ops::capped_attention, ops::capped_attention_backward> {};

}  // namespace heddle::inline v0::compute

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/ops/attention.hpp>
#endif

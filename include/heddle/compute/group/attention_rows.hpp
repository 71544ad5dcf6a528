// heddle/compute/group/attention_rows.hpp: attention by groups of threads, key by key.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

namespace heddle::inline v0::compute::detail::in_groups {

/// A list of slices on the device, whose members there can be read, not called. Both masks call f(begin, end) for intervals: of the
/// keys that a query sees, of the queries that see a key.
struct listed_slices {
  const attention_slice* all;
  std::int64_t count;

  HEDDLE_HD const attention_slice* begin() const { return all; }
  HEDDLE_HD const attention_slice* end() const { return all + count; }

  HEDDLE_HD static bool ends_early(const attention_slice& s) {
    return s.mask == slice_mask::causal || s.mask == slice_mask::bi_causal;
  }
  HEDDLE_HD static bool begins_late(const attention_slice& s) {
    return s.mask == slice_mask::inverse_causal || s.mask == slice_mask::bi_causal;
  }
  template <class F>
  HEDDLE_HD void keys_of(std::int64_t q, const F& f) const {
    for (const attention_slice& s : *this) {
      std::int64_t from = 0, to = 0;
      if (keys_of(s, q, from, to)) f(from, to);  // empty where from is not below
    }
  }
  /// Whether query q is one of a slice, and then which keys it sees there.
  HEDDLE_HD static bool keys_of(const attention_slice& s, std::int64_t q, std::int64_t& from, std::int64_t& to) {
    if (q < s.q_begin || q >= s.q_end) return false;
    from = s.k_begin + (begins_late(s) ? q - s.q_begin : 0);
    to = s.k_end - (ends_early(s) ? s.q_end - 1 - q : 0);
    return true;
  }
  template <class F>
  HEDDLE_HD void queries_of(std::int64_t key, const F& f) const {
    for (const attention_slice& s : *this) {
      if (key < s.k_begin || key >= s.k_end) continue;
      std::int64_t from = s.q_begin, to = s.q_end;
      const std::int64_t first = s.q_end - (s.k_end - key), last = s.q_begin + (key - s.k_begin) + 1;
      if (ends_early(s) && first > from) from = first;
      if (begins_late(s) && last < to) to = last;
      f(from, to);
    }
  }
};
/// Sequences of one length behind each other, each causal.
struct causal_batch {
  std::int64_t sequence;

  template <class F>
  HEDDLE_HD void keys_of(std::int64_t q, const F& f) const {
    f(q / sequence * sequence, q + 1);
  }
  template <class F>
  HEDDLE_HD void queries_of(std::int64_t key, const F& f) const {
    f(key, (key / sequence + 1) * sequence);
  }
};

/// A mask of scores that are kept below a cap: cap tanh(score / cap).
template <class Mask, class S>
struct capped : Mask {
  S cap;
};
template <class Mask>
inline constexpr bool is_capped = false;
template <class Mask, class S>
inline constexpr bool is_capped<capped<Mask, S>> = true;

/// Where key j lies, and where a head of a row begins.
struct page_table {
  const std::int32_t* pages = nullptr;
  std::int64_t count = 0, page_rows = 0;
  HEDDLE_HD std::int64_t row(std::int64_t key) const {
    return page_rows == 0 ? key : pages[key / page_rows] * page_rows + key % page_rows;
  }
  /// Calls f(key) for all keys that lie in the row of this one, if it is the first of them: pages may be listed again.
  template <class F>
  HEDDLE_HD void keys_in_row_of(std::int64_t key, const F& f) const {
    if (page_rows == 0) return f(key);
    const std::int64_t entry = key / page_rows, inside = key % page_rows;
    for (std::int64_t e = 0; e < entry; ++e)
      if (pages[e] == pages[entry]) return;
    for (std::int64_t e = entry; e < count; ++e)
      if (pages[e] == pages[entry]) f(e * page_rows + inside);
  }
};
template <class T>
struct heads_at {
  T* data;
  std::int64_t stride, head_dim;
  HEDDLE_HD T* operator()(std::int64_t row, std::int64_t head) const { return data + row * stride + head * head_dim; }
};

template <class T, class G>
HEDDLE_HD T dot(G& g, std::int64_t n, const T* a, const T* b) {
  return sum_over(g, n, [a, b](std::int64_t d) { return a[d] * b[d]; });
}

/// What all kernels of one call read. `shared`: query heads of one key-value head.
template <class T, class Mask>
struct attention_inputs {
  heads_at<const T> q, k, v;
  std::int64_t queries, heads, shared;
  Mask mask;
  page_table pages;
  sum_of_type<T> scale;
  sum_of_type<T> lowest;  // -inf: no key was seen, or none with a score above it
  std::int64_t key_rows;  // of k and v

  /// The score of the product of a query and a key.
  HEDDLE_HD sum_of_type<T> score(sum_of_type<T> product) const {
    if constexpr (is_capped<Mask>)
      return mask.cap * std::tanh(scale * product / mask.cap);
    else
      return scale * product;
  }
  /// The gradient of scale * product, from that of the score.
  HEDDLE_HD sum_of_type<T> below_cap(sum_of_type<T> gradient, [[maybe_unused]] sum_of_type<T> product) const {
    if constexpr (is_capped<Mask>) {
      const sum_of_type<T> t = std::tanh(scale * product / mask.cap);
      return gradient * (sum_of_type<T>(1) - t * t);
    } else {
      return gradient;
    }
  }
  /// The share of a key in its query, whose log-sum-exp is `level`.
  HEDDLE_HD sum_of_type<T> share(sum_of_type<T> score, sum_of_type<T> level) const {
    return level == lowest ? sum_of_type<T>(0) : math::exponential(score - level);
  }
};

/// A group has one query of one head. The output is scaled again where a larger score than before comes.
/// Source: Milakov and Gimelshein 2018, arXiv:1805.02867 (online softmax); Dao et al. 2022, arXiv:2205.14135.
template <class T, class Mask>
struct attention_row {
  attention_inputs<T, Mask> in;
  heads_at<T> out;
  T* lse;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t r = item / in.heads, h = item % in.heads, width = out.head_dim;
    const T* const query = in.q(r, h);
    T* const sum = out(r, h);
    T top = in.lowest, total = 0;
    for_each_of(g, width, [sum](std::int64_t d) { sum[d] = T(0); });
    in.mask.keys_of(r, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t key = begin; key < end; ++key) {
        const std::int64_t row = in.pages.row(key);
        const T score = in.score(dot(g, in.q.head_dim, query, in.k(row, h / in.shared)));
        const T* const value = in.v(row, h / in.shared);
        if (score > top || score != score) {
          const T shrink = math::exponential(top - score);  // 0 at first: top is -inf
          total *= shrink;
          for_each_of(g, width, [=](std::int64_t d) { sum[d] *= shrink; });
          top = score;
        }
        const T p = in.share(score, top);
        total += p;
        for_each_of(g, width, [=](std::int64_t d) { sum[d] += p * value[d]; });
      }
    });
    const T inverse = total != T(0) ? T(1) / total : T(0);  // no key: zeros
    for_each_of(g, width, [=](std::int64_t d) { sum[d] *= inverse; });
    if (g.leads()) lse[h * in.queries + r] = total != T(0) ? top + std::log(total) : in.lowest;
  }
};

/// Gradients of one query of one head: dq = scale sum_j p_j (dout v_j - dout out) k_j.
template <class T, class Mask>
struct attention_backward_query {
  attention_inputs<T, Mask> in;
  heads_at<const T> dout, out;
  const T* lse;
  heads_at<T> dq;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t r = item / in.heads, h = item % in.heads, width = in.q.head_dim;
    const T *const query = in.q(r, h), *const d_out = dout(r, h);
    T* const sum = dq(r, h);
    const T of_out = dot(g, out.head_dim, d_out, out(r, h)), level = lse[h * in.queries + r];
    for_each_of(g, width, [sum](std::int64_t d) { sum[d] = T(0); });
    in.mask.keys_of(r, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t key = begin; key < end; ++key) {
        const std::int64_t row = in.pages.row(key);
        const T* const k = in.k(row, h / in.shared);
        const T product = dot(g, width, query, k), p = in.share(in.score(product), level);
        const T of_score =
            in.below_cap(p * (dot(g, out.head_dim, d_out, in.v(row, h / in.shared)) - of_out) * in.scale, product);
        for_each_of(g, width, [=](std::int64_t d) { sum[d] += of_score * k[d]; });
      }
    });
  }
};
/// Gradients of one key and its value of one key-value head, from all queries that see it, in their order.
template <class T, class Mask>
struct attention_backward_key {
  attention_inputs<T, Mask> in;
  heads_at<const T> dout, out;
  const T* lse;
  heads_at<T> dk, dv;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t kv_heads = in.heads / in.shared, key = item / kv_heads, kv = item % kv_heads;
    const std::int64_t row = in.pages.row(key), width = in.q.head_dim, out_width = out.head_dim;
    const T *const k = in.k(row, kv), *const v = in.v(row, kv);
    T *const sum_k = dk(row, kv), *const sum_v = dv(row, kv);
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t h = kv * in.shared; h < (kv + 1) * in.shared; ++h) {
          const T *const query = in.q(r, h), *const d_out = dout(r, h);
          const T product = dot(g, width, query, k), p = in.share(in.score(product), lse[h * in.queries + r]);
          const T of_score =
              in.below_cap(p * (dot(g, out_width, d_out, v) - dot(g, out_width, d_out, out(r, h))) * in.scale, product);
          for_each_of(g, width, [=](std::int64_t d) { sum_k[d] += of_score * query[d]; });
          for_each_of(g, out_width, [=](std::int64_t d) { sum_v[d] += p * d_out[d]; });
        }
    };
    in.pages.keys_in_row_of(key, [&](std::int64_t each) { in.mask.queries_of(each, add); });
  }
};
template <class T>
struct zero_heads_row {
  heads_at<T> x;
  std::int64_t heads;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    T* const row = x(r, 0);
    for_each_of(g, heads * x.head_dim, [row](std::int64_t d) { row[d] = T(0); });
  }
};

template <class T, class Space>
heads_at<T> at(const head_rows<T, Space>& x) {
  return {x.data, x.stride, x.head_dim};
}
template <class L, class T, class Mask>
void launch_attention(const L& on, const attention_inputs<T, Mask>& in, heads_at<T> out, T* lse) {
  on.each_row(in.queries * in.heads, out.head_dim, attention_row<T, Mask>{in, out, lse});
}
/// `rows` of k and v, with `kv_heads` each; `keys` of them by the table of pages.
template <class L, class T, class Mask>
void launch_attention_backward(const L& on, const attention_inputs<T, Mask>& in, std::int64_t rows,
                               std::int64_t kv_heads, std::int64_t keys, heads_at<const T> dout, heads_at<const T> out,
                               const T* lse, heads_at<T> dq, heads_at<T> dk, heads_at<T> dv) {
  on.each_row(rows, kv_heads * dk.head_dim, zero_heads_row<T>{dk, kv_heads});
  on.each_row(rows, kv_heads * dv.head_dim, zero_heads_row<T>{dv, kv_heads});
  if (in.heads == 0) return;
  on.each_row(in.queries * in.heads, dq.head_dim, attention_backward_query<T, Mask>{in, dout, out, lse, dq});
  on.each_row(keys * kv_heads, dk.head_dim, attention_backward_key<T, Mask>{in, dout, out, lse, dk, dv});
}

}  // namespace heddle::inline v0::compute::detail::in_groups

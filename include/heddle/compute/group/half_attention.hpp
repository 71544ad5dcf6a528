// heddle/compute/group/half_attention.hpp: attention of bf16 and f16 elements by groups of threads.
#pragma once

#include <heddle/compute/group/attention_tiles.hpp>
#include <heddle/compute/group/matrix_attention.hpp>
#include <heddle/compute/group/matrix_attention_gradients.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>
#include <utility>

namespace heddle::inline v0::compute::detail::in_groups {

template <class From, class To>
struct convert_heads_row {
  heads_at<const From> from;
  heads_at<To> to;
  std::int64_t heads;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    const From* const x = from(r, 0);
    To* const y = to(r, 0);
    for_each_of(g, heads * from.head_dim, [=](std::int64_t d) { y[d] = To(static_cast<float>(x[d])); });
  }
};

/// Heads in float that stand for heads of 16-bit elements, in memory of the device.
template <class L>
class heads_in_float {
 public:
  heads_in_float(const L& on, std::int64_t rows, std::int64_t heads, std::int64_t head_dim)
      : rows_(rows),
        heads_(heads),
        memory_(on.template room<float>(rows * heads * head_dim)),
        at_{memory_.address(), heads * head_dim, head_dim} {}
  template <class T>
  heads_in_float(const L& on, std::int64_t rows, std::int64_t heads, const heads_at<const T>& from)
      : heads_in_float(on, rows, heads, from.head_dim) {
    on.each_row(rows_, heads_ * from.head_dim, convert_heads_row<T, float>{from, at_, heads_});
  }
  template <class T>
  void round_to(const L& on, const heads_at<T>& to) const {
    on.each_row(rows_, heads_ * to.head_dim, convert_heads_row<float, T>{in(), to, heads_});
  }
  heads_at<const float> in() const { return {at_.data, at_.stride, at_.head_dim}; }
  const heads_at<float>& out() const { return at_; }

 private:
  std::int64_t rows_, heads_;
  decltype(std::declval<const L&>().template room<float>(0)) memory_;
  heads_at<float> at_;
};

/// The inputs in float.
template <class T, class Mask, class L>
attention_inputs<float, Mask> in_float(const attention_inputs<T, Mask>& in, const heads_in_float<L>& q,
                                       const heads_in_float<L>& k, const heads_in_float<L>& v) {
  return {q.in(), k.in(), v.in(), in.queries, in.heads, in.shared, in.mask, in.pages, in.scale, in.lowest, in.key_rows};
}
/// Computed by the kernels of float, of operands that are converted before, and rounded after.
template <class L, class T, class Mask>
void attend_in_float(const L& on, const attention_inputs<T, Mask>& in, heads_at<T> out, float* lse) {
  const std::int64_t kv_heads = in.heads / in.shared;
  const heads_in_float<L> q(on, in.queries, in.heads, in.q), k(on, in.key_rows, kv_heads, in.k),
      v(on, in.key_rows, kv_heads, in.v), y(on, in.queries, in.heads, out.head_dim);
  attend(on, in_float(in, q, k, v), y.out(), lse);
  y.round_to(on, out);
}
template <class L, class T, class Mask>
void attend_backward_in_float(const L& on, const attention_inputs<T, Mask>& in, std::int64_t kv_heads,
                              std::int64_t keys, heads_at<const T> dout, heads_at<const T> out, const float* lse,
                              heads_at<T> dq, heads_at<T> dk, heads_at<T> dv) {
  const heads_in_float<L> q(on, in.queries, in.heads, in.q), k(on, in.key_rows, kv_heads, in.k),
      v(on, in.key_rows, kv_heads, in.v), y(on, in.queries, in.heads, out), dy(on, in.queries, in.heads, dout),
      of_q(on, in.queries, in.heads, dq.head_dim), of_k(on, in.key_rows, kv_heads, dk.head_dim),
      of_v(on, in.key_rows, kv_heads, dv.head_dim);
  attend_backward(on, in_float(in, q, k, v), in.key_rows, kv_heads, keys, dy.in(), y.in(), lse, of_q.out(), of_k.out(),
                  of_v.out());
  of_q.round_to(on, dq);
  of_k.round_to(on, dk);
  of_v.round_to(on, dv);
}

/// Scores below a cap by the kernels of float. Others by the launcher's library where it has that, else by matrix instructions where the device has them, else by the kernels of float.
template <class L, class T, class Mask>
  requires is_half_precision<T>
void attend(const L& on, const attention_inputs<T, Mask>& in, heads_at<T> out, float* lse) {
  if constexpr (!is_capped<Mask>) {
    if constexpr (requires { on.attend_by_library(in, out, lse); })
      if (on.attend_by_library(in, out, lse)) return;
    if (attend_by_matrices(on, in, out, lse)) return;
  }
  attend_in_float(on, in, out, lse);
}
/// The same of gradients.
template <class L, class T, class Mask>
  requires is_half_precision<T>
void attend_backward(const L& on, const attention_inputs<T, Mask>& in, std::int64_t, std::int64_t kv_heads,
                     std::int64_t keys, heads_at<const T> dout, heads_at<const T> out, const float* lse, heads_at<T> dq,
                     heads_at<T> dk, heads_at<T> dv) {
  if constexpr (!is_capped<Mask>) {
    if constexpr (requires { on.attend_backward_by_library(in, dout, out, lse, dq, dk, dv); })
      if (on.attend_backward_by_library(in, dout, out, lse, dq, dk, dv)) return;
    if (attend_backward_by_matrices(on, in, kv_heads, dout, out, lse, dq, dk, dv)) return;
  }
  attend_backward_in_float(on, in, kv_heads, keys, dout, out, lse, dq, dk, dv);
}

}  // namespace heddle::inline v0::compute::detail::in_groups

// heddle/compute/host/half_attention.hpp: attention of 16-bit elements, summed in float.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/attention.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace heddle::inline v0::compute::detail {

/// Heads in float, row after row, of heads in another type.
class float_heads {
 public:
  template <class T>
  explicit float_heads(const head_rows<T>& like)
      : memory_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(like.rows * like.width()))),
        heads_{memory_.get(), like.rows, like.heads, like.head_dim, like.lies_by_head() ? like.stride : like.width(),
               like.head_step} {}

  const head_rows<float>& heads() const noexcept { return heads_; }
  template <class T>
  float_heads& read(team& workers, const head_rows<const T>& from) {
    const std::int64_t step = from.lies_by_head() ? from.width() : from.stride;  // blocks are read as they lie
    each_row(workers, [&](std::int64_t r, float* row) { cast_lanes(heads_.width(), from.data + r * step, row); });
    return *this;
  }
  template <class T>
  void write(team& workers, const head_rows<T>& to) const {
    each_row(workers, [&](std::int64_t r, const float* row) { cast_lanes(heads_.width(), row, to.row(r, 0)); });
  }

 private:
  template <class F>
  void each_row(team& workers, const F& f) const {
    if (heads_.width() == 0) return;
    workers.split(heads_.rows, row_grain(heads_.width()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) f(r, memory_.get() + r * heads_.width());
    });
  }
  std::unique_ptr<float[]> memory_;
  head_rows<float> heads_;
};

/// `numbers`: the scale of scores, and what else the operation takes behind it.
template <class Op, class G, class T, class... Numbers>
void attend_in_float(Op op, product_team<G>& on, const head_rows<const T>& q, const head_rows<const T>& k,
                     const head_rows<const T>& v, std::span<const attention_slice> slices, const head_rows<T>& out,
                     std::span<float> lse, const key_pages& pages, Numbers... numbers) {
  float_heads of_q(q), of_k(k), of_v(v), of_out(out);
  body<G, float>(op, on, of_q.read(on, q).heads(), of_k.read(on, k).heads(), of_v.read(on, v).heads(), slices,
                 numbers..., of_out.heads(), lse, pages);
  of_out.write(on, out);
}
template <class G, class T>
  requires is_half_precision<T>
void body(ops::attention op, product_team<G>& on, head_rows<const T> q, head_rows<const T> k, head_rows<const T> v,
          std::span<const attention_slice> slices, float scale, head_rows<T> out, std::span<float> lse,
          key_pages pages) {
  attend_in_float(op, on, q, k, v, slices, out, lse, pages, scale);
}
template <class G, class T>
  requires is_half_precision<T>
void body(ops::capped_attention op, product_team<G>& on, head_rows<const T> q, head_rows<const T> k,
          head_rows<const T> v, std::span<const attention_slice> slices, float scale, float cap, head_rows<T> out,
          std::span<float> lse, key_pages pages) {
  attend_in_float(op, on, q, k, v, slices, out, lse, pages, scale, cap);
}

/// The same of gradients.
template <class Op, class G, class T, class... Numbers>
void attend_backward_in_float(Op op, product_team<G>& on, const head_rows<const T>& dout, const head_rows<const T>& q,
                              const head_rows<const T>& k, const head_rows<const T>& v, const head_rows<const T>& out,
                              std::span<const float> lse, std::span<const attention_slice> slices,
                              const head_rows<T>& dq, const head_rows<T>& dk, const head_rows<T>& dv,
                              const key_pages& pages, Numbers... numbers) {
  float_heads of_dout(dout), of_q(q), of_k(k), of_v(v), of_out(out), of_dq(dq), of_dk(dk), of_dv(dv);
  body<G, float>(op, on, of_dout.read(on, dout).heads(), of_q.read(on, q).heads(), of_k.read(on, k).heads(),
                 of_v.read(on, v).heads(), of_out.read(on, out).heads(), lse, slices, numbers..., of_dq.heads(),
                 of_dk.heads(), of_dv.heads(), pages);
  of_dq.write(on, dq);
  of_dk.write(on, dk);
  of_dv.write(on, dv);
}
template <class G, class T>
  requires is_half_precision<T>
void body(ops::attention_backward op, product_team<G>& on, head_rows<const T> dout, head_rows<const T> q,
          head_rows<const T> k, head_rows<const T> v, head_rows<const T> out, std::span<const float> lse,
          std::span<const attention_slice> slices, float scale, head_rows<T> dq, head_rows<T> dk, head_rows<T> dv,
          key_pages pages) {
  attend_backward_in_float(op, on, dout, q, k, v, out, lse, slices, dq, dk, dv, pages, scale);
}
template <class G, class T>
  requires is_half_precision<T>
void body(ops::capped_attention_backward op, product_team<G>& on, head_rows<const T> dout, head_rows<const T> q,
          head_rows<const T> k, head_rows<const T> v, head_rows<const T> out, std::span<const float> lse,
          std::span<const attention_slice> slices, float scale, float cap, head_rows<T> dq, head_rows<T> dk,
          head_rows<T> dv, key_pages pages) {
  attend_backward_in_float(op, on, dout, q, k, v, out, lse, slices, dq, dk, dv, pages, scale, cap);
}

}  // namespace heddle::inline v0::compute::detail

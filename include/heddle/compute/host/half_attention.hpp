// heddle/compute/host/half_attention.hpp: attention of bf16 and f16 elements on the host, computed in float and rounded once.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>
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

template <class G, class T>
  requires is_half_precision<T>
void attention(team& workers, const head_rows<const T>& q, const head_rows<const T>& k, const head_rows<const T>& v,
               std::span<const attention_slice> slices, float scale, const head_rows<T>& out, float* lse,
               const key_pages& pages) {
  float_heads of_q(q), of_k(k), of_v(v), of_out(out);
  attention<G, float>(workers, of_q.read(workers, q).heads(), of_k.read(workers, k).heads(),
                      of_v.read(workers, v).heads(), slices, scale, of_out.heads(), lse, pages);
  of_out.write(workers, out);
}

template <class G, class T>
  requires is_half_precision<T>
void attention_backward(team& workers, const head_rows<const T>& dout, const head_rows<const T>& q,
                        const head_rows<const T>& k, const head_rows<const T>& v, const head_rows<const T>& out,
                        const float* lse, std::span<const attention_slice> slices, float scale, const head_rows<T>& dq,
                        const head_rows<T>& dk, const head_rows<T>& dv, const key_pages& pages) {
  float_heads of_dout(dout), of_q(q), of_k(k), of_v(v), of_out(out), of_dq(dq), of_dk(dk), of_dv(dv);
  attention_backward<G, float>(workers, of_dout.read(workers, dout).heads(), of_q.read(workers, q).heads(),
                               of_k.read(workers, k).heads(), of_v.read(workers, v).heads(),
                               of_out.read(workers, out).heads(), lse, slices, scale, of_dq.heads(), of_dk.heads(),
                               of_dv.heads(), pages);
  of_dq.write(workers, dq);
  of_dk.write(workers, dk);
  of_dv.write(workers, dv);
}

}  // namespace heddle::inline v0::compute::detail

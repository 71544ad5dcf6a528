// heddle/model/attention.hpp: causal self-attention with its heads split over tp.
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/linear.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

/// y = softmax(q k' / sqrt(head_dim), causal) v Wo + bo with q|k|v = x Wqkv + bqkv. This rank computes its own heads
/// (possibly none); the projection sums over tp.
/// Shapes: x, y [rows, width]; q|k|v [rows, 3 heads head_dim]; heads' outputs [rows, heads head_dim].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <class T, class Plan>
struct self_attention {
  using input_layer = column_linear<T, Plan, typename Plan::qkv_input_gradient>;
  using output_layer = row_linear<T, Plan, typename Plan::head_output>;

  struct saved {
    typename input_layer::saved input{};
    typename output_layer::saved output{};
    matrix_view<T> qkv{};
    matrix_view<T> out{};
    std::span<T> lse{};  ///< log-sum-exp of each row of scores, [batch, heads, sequence]
    compute::attention_shape shape{};

    /// Memory for at most `rows` tokens.
    void place(carver<T>& memory, std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
      qkv_memory = memory.take(rows * 3 * heads * head_dim);
      out_memory = memory.take(rows * heads * head_dim);
      lse_memory = memory.take(rows * heads);
    }
    std::span<T> qkv_memory{}, out_memory{}, lse_memory{};
  };

  input_layer c_attn{};
  output_layer c_proj{};
  std::int64_t heads = 0;  ///< of this rank
  std::int64_t head_dim = 0;

  /// Points the views of `s` at its memory, as `forward` leaves them.
  void view(saved& s, extent_of_batch e, matrix_view<const T> x) const {
    s.shape = {e.samples, e.sequence, heads, head_dim};
    s.qkv = as_matrix(s.qkv_memory, e.rows(), 3 * heads * head_dim);
    s.out = as_matrix(s.out_memory, e.rows(), heads * head_dim);
    s.lse = s.lse_memory.first(static_cast<std::size_t>(e.rows() * heads));
    s.input.x = x;
    s.output.x = s.out;
  }

  template <class Context>
  void forward(Context& c, saved& s, extent_of_batch e, matrix_view<const T> x, matrix_view<T> y) const {
    view(s, e, x);
    c_attn.forward(c, s.input, x, s.qkv);
    c.compute.attention(s.qkv, s.shape, s.out, s.lse);
    c_proj.forward(c, s.output, s.out, y);
  }
  /// `dqkv` is kept for backward_weight; `d_out` [rows, heads head_dim] is scratch.
  template <class Context>
  void backward_input(Context& c, const saved& s, matrix_view<const T> dy, matrix_view<T> d_out, matrix_view<T> dqkv,
                      matrix_view<T> dx) const {
    c_proj.backward_input(c, dy, d_out);
    c.compute.attention_backward(d_out, s.qkv, s.out, s.lse, s.shape, dqkv);
    c_attn.backward_input(c, dqkv, dx);
  }
  template <class Context>
  void backward_weight(Context& c, const saved& s, matrix_view<const T> dy, matrix_view<const T> dqkv) const {
    c_proj.backward_weight(c, s.output, dy);
    c_attn.backward_weight(c, s.input, dqkv);
  }
};

}  // namespace heddle::inline v0::model

// heddle/model/block.hpp: one pre-norm transformer block: attention and MLP, each around a residual connection.
#pragma once

#include <heddle/model/attention.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/layer_norm.hpp>
#include <heddle/model/mlp.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

/// What one rank holds of one block. Units: elements.
struct block_extents {
  std::int64_t width = 0;
  std::int64_t heads = 0;  ///< of this rank, as `hidden`
  std::int64_t head_dim = 0;
  std::int64_t hidden = 0;
};

/// mid = x + attention(ln_1(x)); y = mid + mlp(ln_2(mid)). Over tp: two all_reduces forward, two in backward_input,
/// none in backward_weight.
/// Shapes: x, mid, y [rows, width].
template <class T, class Plan>
struct block {
  /// Kept from forward to backward: about (4 + 4 h/H + 8 f/F) width elements per token, with this rank's heads h of H
  /// and hidden units f of F.
  struct saved {
    extent_of_batch extent{};
    std::span<T> x{};         ///< the block's input
    std::span<T> normed_1{};  ///< ln_1's output, which c_attn's weight gradient needs
    std::span<T> mid{};
    std::span<T> normed_2{};
    typename layer_norm<T>::saved ln_1{};
    typename self_attention<T, Plan>::saved attn{};
    typename layer_norm<T>::saved ln_2{};
    typename mlp<T, Plan>::saved ff{};

    void place(carver<T>& memory, std::int64_t rows, const block_extents& e) {
      x = memory.take(rows * e.width);
      normed_1 = memory.take(rows * e.width);
      mid = memory.take(rows * e.width);
      normed_2 = memory.take(rows * e.width);
      ln_1.place(memory, rows);
      attn.place(memory, rows, e.heads, e.head_dim);
      ln_2.place(memory, rows);
      ff.place(memory, rows, e.hidden);
    }
  };

  /// Made by backward_input for backward_weight: the gradient at the output of each part with weights. About
  /// (4 + 3 h/H + 4 f/F) width elements per token.
  struct gradients {
    std::span<T> d_out{};  ///< of the block's output: filled in before backward_input
    std::span<T> d_hidden{};
    std::span<T> d_normed_2{};
    std::span<T> d_mid{};
    std::span<T> d_qkv{};
    std::span<T> d_normed_1{};

    void place(carver<T>& memory, std::int64_t rows, const block_extents& e) {
      d_out = memory.take(rows * e.width);
      d_hidden = memory.take(rows * e.hidden);
      d_normed_2 = memory.take(rows * e.width);
      d_mid = memory.take(rows * e.width);
      d_qkv = memory.take(rows * 3 * e.heads * e.head_dim);
      d_normed_1 = memory.take(rows * e.width);
    }
  };

  layer_norm<T> ln_1{};
  self_attention<T, Plan> attn{};
  layer_norm<T> ln_2{};
  mlp<T, Plan> ff{};
  block_extents local{};

  /// Reads `s.x`, which the caller has filled.
  template <class Context>
  void forward(Context& c, saved& s, extent_of_batch e, matrix_view<T> y) const {
    const std::int64_t rows = e.rows();
    s.extent = e;
    const auto x = as_matrix(s.x, rows, local.width);
    const auto normed_1 = as_matrix(s.normed_1, rows, local.width);
    const auto mid = as_matrix(s.mid, rows, local.width);
    const auto normed_2 = as_matrix(s.normed_2, rows, local.width);
    ln_1.forward(c, s.ln_1, x, normed_1);
    attn.forward(c, s.attn, e, normed_1, mid);
    c.compute.add(x.elements(), mid.elements(), mid.elements());
    ln_2.forward(c, s.ln_2, mid, normed_2);
    ff.forward(c, s.ff, normed_2, y);
    c.compute.add(mid.elements(), y.elements(), y.elements());
  }

  /// Points the views of `s` at its memory, as `forward` leaves them: for saved activations that were somewhere else.
  void view(saved& s, extent_of_batch e) const {
    const std::int64_t rows = e.rows();
    s.extent = e;
    s.ln_1.x = as_matrix(s.x, rows, local.width);
    attn.view(s.attn, e, as_matrix(s.normed_1, rows, local.width));
    s.ln_2.x = as_matrix(s.mid, rows, local.width);
    ff.view(s.ff, as_matrix(s.normed_2, rows, local.width));
  }

  /// Reads `g.d_out`, writes the gradient of the block's input to dx. `scratch`: rows * heads * head_dim elements.
  template <class Context>
  void backward_input(Context& c, const saved& s, gradients& g, std::span<T> scratch, matrix_view<T> dx) const {
    const std::int64_t rows = s.extent.rows();
    const auto d_out = as_matrix(g.d_out, rows, local.width);
    const auto d_mid = as_matrix(g.d_mid, rows, local.width);
    const auto d_normed_2 = as_matrix(g.d_normed_2, rows, local.width);
    const auto d_normed_1 = as_matrix(g.d_normed_1, rows, local.width);
    ff.backward_input(c, s.ff, d_out, as_matrix(g.d_hidden, rows, local.hidden), d_normed_2);
    c.compute.copy(d_out.elements(), d_mid.elements());
    ln_2.backward_input(c, s.ln_2, d_normed_2, d_mid);
    attn.backward_input(c, s.attn, d_mid, as_matrix(scratch, rows, local.heads * local.head_dim),
                        as_matrix(g.d_qkv, rows, 3 * local.heads * local.head_dim), d_normed_1);
    c.compute.copy(d_mid.elements(), dx.elements());
    ln_1.backward_input(c, s.ln_1, d_normed_1, dx);
  }

  template <class Context>
  void backward_weight(Context& c, const saved& s, const gradients& g) const {
    const std::int64_t rows = s.extent.rows();
    ff.backward_weight(c, s.ff, as_matrix(g.d_out, rows, local.width), as_matrix(g.d_hidden, rows, local.hidden));
    ln_2.backward_weight(c, s.ln_2, as_matrix(g.d_normed_2, rows, local.width));
    attn.backward_weight(c, s.attn, as_matrix(g.d_mid, rows, local.width),
                         as_matrix(g.d_qkv, rows, 3 * local.heads * local.head_dim));
    ln_1.backward_weight(c, s.ln_1, as_matrix(g.d_normed_1, rows, local.width));
  }
};

}  // namespace heddle::inline v0::model

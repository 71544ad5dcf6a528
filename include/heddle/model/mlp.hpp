// heddle/model/mlp.hpp: the MLP of a transformer block: two linear layers around a GELU, hidden units split over tp.
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/linear.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

/// y = gelu(x Wfc + bfc) Wproj + bproj (tanh form of GELU). This rank computes its own hidden units; the projection
/// sums over tp.
/// Shapes: x, y [rows, width]; hidden [rows, local hidden].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <class T, class Plan>
struct mlp {
  struct saved {
    typename column_linear<T, Plan>::saved input{};
    typename row_linear<T, Plan>::saved output{};
    matrix_view<T> hidden{};     ///< before the GELU
    matrix_view<T> activated{};  ///< after it

    /// Memory for at most `rows` tokens.
    void place(carver<T>& memory, std::int64_t rows, std::int64_t local_hidden) {
      hidden_memory = memory.take(rows * local_hidden);
      activated_memory = memory.take(rows * local_hidden);
    }
    std::span<T> hidden_memory{}, activated_memory{};
  };

  column_linear<T, Plan> c_fc{};
  row_linear<T, Plan> c_proj{};

  /// Points the views of `s` at its memory, as `forward` leaves them.
  void view(saved& s, matrix_view<const T> x) const {
    const std::int64_t columns = c_fc.at.weight.extent(1);
    s.hidden = as_matrix(s.hidden_memory, x.extent(0), columns);
    s.activated = as_matrix(s.activated_memory, x.extent(0), columns);
    s.input.x = x;
    s.output.x = s.activated;
  }

  template <class Context>
  void forward(Context& c, saved& s, matrix_view<const T> x, matrix_view<T> y) const {
    view(s, x);
    c_fc.forward(c, s.input, x, s.hidden);
    c.compute.gelu(s.hidden.elements(), s.activated.elements());
    c_proj.forward(c, s.output, s.activated, y);
  }
  /// `d_hidden` is kept for backward_weight.
  template <class Context>
  void backward_input(Context& c, const saved& s, matrix_view<const T> dy, matrix_view<T> d_hidden,
                      matrix_view<T> dx) const {
    c_proj.backward_input(c, dy, d_hidden);
    c.compute.gelu_backward(s.hidden.elements(), d_hidden.elements(), d_hidden.elements());
    c_fc.backward_input(c, d_hidden, dx);
  }
  template <class Context>
  void backward_weight(Context& c, const saved& s, matrix_view<const T> dy, matrix_view<const T> d_hidden) const {
    c_proj.backward_weight(c, s.output, dy);
    c_fc.backward_weight(c, s.input, d_hidden);
  }
};

}  // namespace heddle::inline v0::model

// heddle/model/linear.hpp: linear layers split over tp by their outputs (columns) or their inputs (rows).
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/tensor_parallel.hpp>

#include <span>

namespace heddle::inline v0::model {

/// y = x W + b with this rank's columns of W [in, out] and of b. x is the same on all ranks along tp, and each uses a
/// copy of it; y is split by columns. Forward sends nothing; the input gradient is a sum over tp.
/// Shapes: x [rows, in], y and dy [rows, local out]. `InputGradient` is what the layout algebra says dx is.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3, figure 3.
template <class T, class Plan, class InputGradient = typename Plan::column_input_gradient>
struct column_linear {
  /// What backward_weight needs from forward.
  struct saved {
    matrix_view<const T> x{};
  };
  weight_views<T> at{};

  template <class Context>
  void forward(Context& c, saved& s, matrix_view<const T> x, matrix_view<T> y) const {
    s.x = x;
    c.compute.template matmul<transpose::no, transpose::no>(x, at.weight, y, T(0));
    c.compute.add_bias(y, at.bias);
  }
  template <class Context>
  void backward_input(Context& c, matrix_view<const T> dy, matrix_view<T> dx) const {
    c.compute.template matmul<transpose::no, transpose::yes>(dy, at.weight, dx, T(0));
    settle<InputGradient, dual<typename Plan::rows>>(c.tp_group, dx.elements());
  }
  template <class Context>
  void backward_weight(Context& c, const saved& s, matrix_view<const T> dy) const {
    c.compute.template matmul<transpose::yes, transpose::no>(s.x, dy, at.weight_gradient, T(1));
    c.compute.add_bias_backward(dy, at.bias_gradient);
  }
};

/// y = x W + b with this rank's rows of W [in, out] and all of b. x is split by columns; y is a sum over tp, to which
/// every rank adds the bias once. The input gradient needs no communication.
/// Shapes: x [rows, local in], y and dy [rows, out].
template <class T, class Plan, class Output = typename Plan::row_output>
struct row_linear {
  struct saved {
    matrix_view<const T> x{};
  };
  weight_views<T> at{};

  template <class Context>
  void forward(Context& c, saved& s, matrix_view<const T> x, matrix_view<T> y) const {
    s.x = x;
    c.compute.template matmul<transpose::no, transpose::no>(x, at.weight, y, T(0));
    settle<Output, typename Plan::rows>(c.tp_group, y.elements());
    c.compute.add_bias(y, at.bias);
  }
  template <class Context>
  void backward_input(Context& c, matrix_view<const T> dy, matrix_view<T> dx) const {
    c.compute.template matmul<transpose::no, transpose::yes>(dy, at.weight, dx, T(0));
  }
  template <class Context>
  void backward_weight(Context& c, const saved& s, matrix_view<const T> dy) const {
    c.compute.template matmul<transpose::yes, transpose::no>(s.x, dy, at.weight_gradient, T(1));
    c.compute.add_bias_backward(dy, at.bias_gradient);
  }
};

}  // namespace heddle::inline v0::model

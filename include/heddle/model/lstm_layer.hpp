// heddle/model/lstm_layer.hpp: an LSTM layer over several sequences of rows, with its gradients.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::model {

/// One layer of LSTM cells: with s the logistic function, .* element by element, rows t of a lane one after the other,
///   i, f, g, o = s, s, tanh, s of W x_t + b + U h_{t-1}   c_t = f .* c_{t-1} + i .* g   h_t = o .* tanh(c_t).
/// Lane l has rows l steps, ..., l steps + steps - 1 of each matrix. Products are the backend's; the rest is done here, on the host.
/// Shapes: W [4 width, inputs] and U [4 width, width], the rows of i, f, g, o (PyTorch's weight_ih and weight_hh); b [4 width].
/// Source: Hochreiter and Schmidhuber 1997, in PyTorch's form.
template <class T, class Backend>
class lstm_layer {
 public:
  struct weights {
    std::span<T> input{}, recurrent{}, bias{};
  };
  /// What a forward keeps. Shapes: gates [rows, 4 width], cells and outputs [rows, width], begin_cells and begin_outputs [lanes, width].
  struct activations {
    std::vector<T> gates{}, cells{}, outputs{}, begin_cells{}, begin_outputs{};
  };

  lstm_layer(Backend& backend, std::int64_t inputs, std::int64_t width)
      : backend_(&backend), inputs_(inputs), width_(width) {}
  std::int64_t inputs() const noexcept { return inputs_; }
  std::int64_t width() const noexcept { return width_; }

  /// Begins from `a.begin_cells` and `a.begin_outputs`, zeros if they are empty. Shapes: x [lanes * steps, inputs].
  void forward(const weights& w, const T* x, std::int64_t lanes, std::int64_t steps, activations& a) {
    const std::int64_t rows = lanes * steps;
    a.gates.resize(size(rows * 4 * width_));
    a.cells.resize(size(rows * width_));
    a.outputs.resize(size(rows * width_));
    for (std::vector<T>* v : {&a.begin_cells, &a.begin_outputs})
      if (v->empty()) v->assign(size(lanes * width_), T(0));
    compute::matmul<compute::transpose::no, compute::transpose::yes>(*backend_, in(x, rows, inputs_),
                                                                     in(w.input.data(), 4 * width_, inputs_),
                                                                     out(a.gates.data(), rows, 4 * width_), T(0));
    compute::run<compute::ops::add_bias>(*backend_, out(a.gates.data(), rows, 4 * width_), std::span<const T>(w.bias));
    before_.resize(size(lanes * width_));
    added_.resize(size(lanes * 4 * width_));
    for (std::int64_t t = 0; t < steps; ++t) {
      for (std::int64_t l = 0; l < lanes; ++l)
        std::copy_n(previous(a.outputs, a.begin_outputs, l, t, steps), width_, before_.begin() + l * width_);
      compute::matmul<compute::transpose::no, compute::transpose::yes>(*backend_, in(before_.data(), lanes, width_),
                                                                       in(w.recurrent.data(), 4 * width_, width_),
                                                                       out(added_.data(), lanes, 4 * width_), T(0));
      for (std::int64_t l = 0; l < lanes; ++l) {
        const std::int64_t r = l * steps + t;
        T* const g = a.gates.data() + r * 4 * width_;
        const T* const more = added_.data() + l * 4 * width_;
        const T* const c = previous(a.cells, a.begin_cells, l, t, steps);
        for (std::int64_t j = 0; j < width_; ++j) {
          const T i = logistic(g[j] + more[j]);
          const T f = logistic(g[width_ + j] + more[width_ + j]);
          const T n = std::tanh(g[2 * width_ + j] + more[2 * width_ + j]);
          const T o = logistic(g[3 * width_ + j] + more[3 * width_ + j]);
          const T cell = f * c[j] + i * n;
          g[j] = i;
          g[width_ + j] = f;
          g[2 * width_ + j] = n;
          g[3 * width_ + j] = o;
          a.cells[size(r * width_ + j)] = cell;
          a.outputs[size(r * width_ + j)] = o * std::tanh(cell);
        }
      }
    }
  }

  /// After `forward` of the same rows, which `a` holds: adds to `gradients`, writes dx unless it is null; the gates become their gradients.
  /// Shapes: dy [rows, width] is overwritten, dx [rows, inputs].
  void backward(const weights& w, const weights& gradients, const T* x, std::int64_t lanes, std::int64_t steps,
                activations& a, T* dy, T* dx) {
    const std::int64_t rows = lanes * steps;
    std::vector<T> d_cell(size(lanes * width_), T(0)), d_before(size(lanes * width_)),
        d_gates(size(lanes * 4 * width_)), shifted(size(rows * width_));
    for (std::int64_t t = steps; t-- > 0;) {
      for (std::int64_t l = 0; l < lanes; ++l) {
        const std::int64_t r = l * steps + t;
        T* const g = a.gates.data() + r * 4 * width_;
        const T* const before = previous(a.cells, a.begin_cells, l, t, steps);
        std::copy_n(previous(a.outputs, a.begin_outputs, l, t, steps), width_, shifted.begin() + r * width_);
        for (std::int64_t j = 0; j < width_; ++j) {
          const T i = g[j], f = g[width_ + j], n = g[2 * width_ + j], o = g[3 * width_ + j];
          const T tanh_c = std::tanh(a.cells[size(r * width_ + j)]);
          const T dh = dy[r * width_ + j];
          T& dc = d_cell[size(l * width_ + j)];
          dc += dh * o * (T(1) - tanh_c * tanh_c);
          g[j] = dc * n * i * (T(1) - i);
          g[width_ + j] = dc * before[j] * f * (T(1) - f);
          g[2 * width_ + j] = dc * i * (T(1) - n * n);
          g[3 * width_ + j] = dh * tanh_c * o * (T(1) - o);
          dc *= f;
        }
        std::copy_n(g, 4 * width_, d_gates.begin() + l * 4 * width_);
      }
      if (t == 0) break;
      compute::matmul<compute::transpose::no, compute::transpose::no>(*backend_, in(d_gates.data(), lanes, 4 * width_),
                                                                      in(w.recurrent.data(), 4 * width_, width_),
                                                                      out(d_before.data(), lanes, width_), T(0));
      for (std::int64_t l = 0; l < lanes; ++l)
        for (std::int64_t j = 0; j < width_; ++j)
          dy[(l * steps + t - 1) * width_ + j] += d_before[size(l * width_ + j)];
    }
    const auto d = in(a.gates.data(), rows, 4 * width_);
    compute::matmul<compute::transpose::yes, compute::transpose::no>(
        *backend_, d, in(x, rows, inputs_), out(gradients.input.data(), 4 * width_, inputs_), T(1));
    compute::matmul<compute::transpose::yes, compute::transpose::no>(
        *backend_, d, in(shifted.data(), rows, width_), out(gradients.recurrent.data(), 4 * width_, width_), T(1));
    compute::run<compute::ops::add_bias_backward>(*backend_, d, gradients.bias);
    if (dx != nullptr)
      compute::matmul<compute::transpose::no, compute::transpose::no>(
          *backend_, d, in(w.input.data(), 4 * width_, inputs_), out(dx, rows, inputs_), T(0));
  }

 private:
  static std::size_t size(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }
  static T logistic(T x) noexcept { return T(1) / (T(1) + std::exp(-x)); }
  const T* previous(const std::vector<T>& rows, const std::vector<T>& begin, std::int64_t lane, std::int64_t t,
                    std::int64_t steps) const noexcept {
    return t > 0 ? rows.data() + (lane * steps + t - 1) * width_ : begin.data() + lane * width_;
  }
  static matrix_view<const T> in(const T* at, std::int64_t rows, std::int64_t columns) {
    return {at, dynamic_shape<2>(rows, columns)};
  }
  static matrix_view<T> out(T* at, std::int64_t rows, std::int64_t columns) {
    return {at, dynamic_shape<2>(rows, columns)};
  }

  Backend* backend_;
  std::int64_t inputs_, width_;
  std::vector<T> before_{}, added_{};
};

}  // namespace heddle::inline v0::model

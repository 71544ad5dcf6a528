// heddle/model/layer_norm.hpp: layer norm of every row, the same on all ranks along tp.
#pragma once

#include <heddle/model/layer.hpp>

#include <span>

namespace heddle::inline v0::model {

/// y = (x - mean) rstd w + b. Over tp all ranks do the same with the same weights (`identical`), so the
/// gradients are whole on each; nothing is sent.
/// Shapes: x, y [rows, width]; w, b [width].
template <class T>
struct layer_norm {
  struct saved {
    matrix_view<const T> x{};
    std::span<T> mean{};  ///< [rows]; memory is given by `place`
    std::span<T> rstd{};

    void place(carver<T>& memory, std::int64_t rows) {
      mean = memory.take(rows);
      rstd = memory.take(rows);
    }
  };
  std::span<const T> weight{};
  std::span<T> weight_gradient{};
  std::span<const T> bias{};
  std::span<T> bias_gradient{};
  T epsilon{};

  template <class Context>
  void forward(Context& c, saved& s, matrix_view<const T> x, matrix_view<T> y) const {
    s.x = x;
    c.compute.layer_norm(x, weight, bias, epsilon, y, mean(s), rstd(s));
  }
  /// Adds to dx: the residual stream's own gradient is already there.
  template <class Context>
  void backward_input(Context& c, const saved& s, matrix_view<const T> dy, matrix_view<T> dx) const {
    c.compute.layer_norm_backward_input(dy, s.x, weight, mean(s), rstd(s), dx);
  }
  template <class Context>
  void backward_weight(Context& c, const saved& s, matrix_view<const T> dy) const {
    c.compute.layer_norm_backward_weight(dy, s.x, mean(s), rstd(s), weight_gradient, bias_gradient);
  }

 private:
  static std::span<T> mean(const saved& s) { return s.mean.first(static_cast<std::size_t>(s.x.extent(0))); }
  static std::span<T> rstd(const saved& s) { return s.rstd.first(static_cast<std::size_t>(s.x.extent(0))); }
};

}  // namespace heddle::inline v0::model

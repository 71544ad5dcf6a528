// heddle/compute/float8_products.hpp: a backend with products of float matrices whose operands are scaled and rounded to 8 bits.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute {

/// Which of the two formats an operand of a product in 8 bits has: `float8_e4m3` for weights and activations, `float8_e5m2` for gradients.
enum class float8_operand : bool { value, gradient };

/// The factor by which a tensor with elements up to `greatest` is multiplied before it is rounded, so that they fill the format.
/// Source: torchao, `float8/float8_utils.py`, `amax_to_scale`.
template <class Format>
float float8_scale(float greatest) noexcept {
  return static_cast<float>(static_cast<double>(Format::largest) / (std::max)(static_cast<double>(greatest), 1e-12));
}

/// `Backend`, on the host, with products whose operands are scaled tensor by tensor, rounded to 8 bits, and added up in float: an emulation
/// that has the numbers of processors with such products and none of their speed. `matmul` and all other kernels are those of
/// `Backend`; layers call `scaled_matmul` for the products that a policy wants in 8 bits (`model::layers::multiply`).
/// Memory: the rounded operands, as floats, and the result of the largest product so far.
template <class Backend>
  requires product_kernels<Backend, float> && std::is_same_v<space_of<Backend>, host_memory>
class float8_products : public Backend {
 public:
  using Backend::Backend;
  /// Layers ask for it.
  using scales_operands = float8;

  /// The greatest magnitude of a matrix; 0 for none. NaN are passed over: they stay NaN when they are rounded.
  static float greatest(matrix_view<const float> x) noexcept {
    float most = 0;
    for (const float v : x.elements()) most = std::abs(v) > most ? std::abs(v) : most;
    return most;
  }

  /// c = beta c + op(a) op(b) of operands rounded to the formats `A` and `B` at the scales of tensors with these greatest magnitudes. The
  /// product of the rounded operands is added up in float and divided by both scales.
  /// Shapes and errors: those of `matmul`.
  template <transpose TA, transpose TB, float8_operand A, float8_operand B>
  void scaled_matmul(matrix_view<const float> a, matrix_view<const float> b, matrix_view<float> c, float greatest_a,
                     float greatest_b, float beta = 0) {
    const float scale_a = scale_of<A>(greatest_a), scale_b = scale_of<B>(greatest_b);
    const auto left = rounded<A>(a, scale_a, left_), right = rounded<B>(b, scale_b, right_);
    const float back = (1 / scale_a) * (1 / scale_b);
    const auto n = static_cast<std::int64_t>(c.size());
    grow(sum_, n);
    const matrix_view<float> sum(sum_.data(), c.shape());
    Backend::template matmul<TA, TB>(left, right, sum, 0.0f);
    if (beta == 0)
      for (std::int64_t i = 0; i < n; ++i) c.data()[i] = sum.data()[i] * back;
    else
      for (std::int64_t i = 0; i < n; ++i) c.data()[i] = beta * c.data()[i] + sum.data()[i] * back;
  }

 private:
  template <float8_operand Of>
  using format_of = std::conditional_t<Of == float8_operand::value, float8_e4m3, float8_e5m2>;
  template <float8_operand Of>
  static float scale_of(float greatest) noexcept {
    return float8_scale<format_of<Of>>(greatest);
  }
  static void grow(buffer<float>& room, std::int64_t n) {
    if (static_cast<std::int64_t>(room.size()) < n) room = buffer<float>(n);
  }
  template <float8_operand Of>
  static matrix_view<const float> rounded(matrix_view<const float> x, float scale, buffer<float>& room) {
    const auto n = static_cast<std::int64_t>(x.size());
    grow(room, n);
    for (std::int64_t i = 0; i < n; ++i) room.data()[i] = format_of<Of>(x.data()[i] * scale);
    return {room.data(), x.shape()};
  }

  buffer<float> left_{}, right_{}, sum_{};
};

}  // namespace heddle::inline v0::compute

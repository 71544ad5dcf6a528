// heddle/compute/float8_products.hpp: a backend with float products scaled to 8 bits.
#pragma once

#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/compute/ops/scaled_products.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute {

/// Which of the formats of `float8` or `float8_rows` an operand of a product in 8 bits has: that of weights and activations, or of gradients.
enum class float8_operand : bool { value, gradient };

/// The factor by which a tensor with elements up to `greatest` is multiplied before it is rounded, so that they fill the format.
/// Source: torchao, `float8/float8_utils.py`, `amax_to_scale`.
template <class Format>
float float8_scale(float greatest) noexcept {
  return static_cast<float>(static_cast<double>(Format::largest) / (std::max)(static_cast<double>(greatest), 1e-12));
}

/// The same rounded down to a power of two, so that scaling rounds nothing.
template <class Format>
float float8_power_of_two(float greatest) noexcept {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, float8_scale<Format>(greatest)) & 0x7f800000u);
}

/// `Backend`, on the host, with products whose operands are scaled, rounded to 8 bits, and added up in float: an emulation
/// that has the numbers of processors with such products and none of their speed. `Formats`: `float8`, a scale for each operand, or `float8_rows`,
/// one for each row of op(a) and each column of op(b). All operations are those of
/// `Backend`; layers call `scaled_matmul` for the products that a policy wants in 8 bits (`model::layers::multiply`).
/// Memory: the rounded operands, as floats, and the result of the largest product so far.
/// Where `Backend` has such products in the memory of a device (`scaled_product_facet`; with `float8_rows` `row_scaled_product_facet`)
/// they are its own; scales stay on the device.
template <class Backend, class Formats = float8>
  requires(offered<product_facet, Backend, float> && std::is_same_v<space_of<Backend>, host_memory>) ||
          (offered<scaled_product_facet, Backend, float> && std::is_same_v<Formats, float8>) ||
          (offered<row_scaled_product_facet, Backend, float> && std::is_same_v<Formats, float8_rows>)
class float8_products : public Backend {
 public:
  using Backend::Backend;
  /// Layers ask for it.
  using scales_operands = Formats;

  /// The greatest magnitude of a matrix; 0 for none. NaN are passed over: they stay NaN when they are rounded.
  static float greatest(matrix_view<const float> x) noexcept {
    float most = 0;
    for (const float v : x.elements()) most = std::abs(v) > most ? std::abs(v) : most;
    return most;
  }

  /// The greatest magnitude of each row of op(x), or with `transpose::yes` of each column of x. `most`: as many.
  template <transpose TX>
  static void greatest_of_rows(matrix_view<const float> x, std::span<float> most) noexcept {
    std::fill(most.begin(), most.end(), 0.0f);
    for_each_row<TX>(x, [&](std::int64_t at, std::int64_t row) {
      float& so_far = most[static_cast<std::size_t>(row)];
      const float v = std::abs(x.data()[at]);
      so_far = v > so_far ? v : so_far;
    });
  }
  /// Room for the greatest magnitudes of so many rows, until the next call.
  std::span<float> room_for_rows(std::int64_t rows) {
    grow(rows_, rows);
    return {rows_.data(), static_cast<std::size_t>(rows)};
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
    run<ops::matmul<TA, TB>>(static_cast<Backend&>(*this), left, right, sum, 0.0f);
    if (beta == 0)
      for (std::int64_t i = 0; i < n; ++i) c.data()[i] = sum.data()[i] * back;
    else
      for (std::int64_t i = 0; i < n; ++i) c.data()[i] = beta * c.data()[i] + sum.data()[i] * back;
  }
  /// The same at the scales of rows of op(a) and columns of op(b) with these greatest magnitudes, each rounded down to a power of two.
  template <transpose TA, transpose TB, float8_operand A, float8_operand B>
  void scaled_matmul(matrix_view<const float> a, matrix_view<const float> b, matrix_view<float> c,
                     std::span<const float> greatest_a, std::span<const float> greatest_b, float beta = 0) {
    constexpr transpose columns_of_b = TB == transpose::yes ? transpose::no : transpose::yes;
    const auto left = rounded_rows<A, TA>(a, greatest_a, left_);
    const auto right = rounded_rows<B, columns_of_b>(b, greatest_b, right_);
    grow(sum_, static_cast<std::int64_t>(c.size()));
    const matrix_view<float> sum(sum_.data(), c.shape());
    run<ops::matmul<TA, TB>>(static_cast<Backend&>(*this), left, right, sum, 0.0f);
    const std::int64_t rows = c.extent(0), columns = c.extent(1);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float back = 1 / row_scale_of<A>(greatest_a[static_cast<std::size_t>(i)]);
      for (std::int64_t j = 0; j < columns; ++j) {
        const float scaled =
            sum.data()[i * columns + j] * (back / row_scale_of<B>(greatest_b[static_cast<std::size_t>(j)]));
        float& to = c.data()[i * columns + j];
        to = beta == 0 ? scaled : beta * to + scaled;
      }
    }
  }

 private:
  template <float8_operand Of>
  using format_of =
      std::conditional_t<Of == float8_operand::value, typename Formats::value, typename Formats::gradient>;
  template <float8_operand Of>
  static float row_scale_of(float greatest) noexcept {
    return float8_power_of_two<format_of<Of>>(greatest);
  }
  // f(element, row of op(x)) for each element.
  template <transpose TX, class F>
  static void for_each_row(matrix_view<const float> x, F&& f) {
    for (std::int64_t i = 0, at = 0; i < x.extent(0); ++i)
      for (std::int64_t j = 0; j < x.extent(1); ++j, ++at) f(at, TX == transpose::no ? i : j);
  }
  template <float8_operand Of, transpose TX>
  matrix_view<const float> rounded_rows(matrix_view<const float> x, std::span<const float> greatest,
                                        buffer<float>& room) {
    grow(room, static_cast<std::int64_t>(x.size()));
    grow(scales_, static_cast<std::int64_t>(greatest.size()));
    std::transform(greatest.begin(), greatest.end(), scales_.data(), row_scale_of<Of>);
    for_each_row<TX>(x, [&](std::int64_t at, std::int64_t row) {
      room.data()[at] = format_of<Of>(x.data()[at] * scales_.data()[row]);
    });
    return {room.data(), x.shape()};
  }
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

  buffer<float> left_{}, right_{}, sum_{}, rows_{}, scales_{};
};

// Of a device.
template <class Backend>
  requires offered<scaled_product_facet, Backend, float>
class float8_products<Backend, float8> : public Backend {
  using memory = space_of<Backend>;

 public:
  using Backend::Backend;
  using scales_operands = float8;
  /// Greatest magnitudes are in the memory of tensors.
  using scales_in_memory = memory;

  /// The greatest magnitudes of both, until the next call.
  row_view<float, memory> greatest_of(matrix_view<const float, memory> a, matrix_view<const float, memory> b) {
    if (greatest_.size() == 0) greatest_ = buffer<float, memory>(this->queue(), 2, "scales of products in 8 bits");
    run<ops::find_greatest>(own(), a, row_at<memory>(greatest_.address(), 1));
    run<ops::find_greatest>(own(), b, row_at<memory>(greatest_.address() + 1, 1));
    return row_at<memory>(greatest_.address(), 2);
  }
  /// c = beta c + op(a) op(b), for what `greatest_of` found. Shapes and errors: those of `matmul`.
  template <transpose TA, transpose TB, float8_operand A, float8_operand B>
  void scaled_matmul(matrix_view<const float, memory> a, matrix_view<const float, memory> b,
                     matrix_view<float, memory> c, row_view<const float, memory> greatest, float beta = 0) {
    using value = float8::value;
    using gradient = float8::gradient;
    run<ops::scaled_product<TA, TB, std::conditional_t<A == float8_operand::value, value, gradient>,
                            std::conditional_t<B == float8_operand::value, value, gradient>, float>>(
        own(), a, b, c, row_at<memory>(greatest.address(), 1), row_at<memory>(greatest.address() + 1, 1), beta);
  }

 private:
  Backend& own() noexcept { return *this; }
  buffer<float, memory> greatest_{};
};
template <class Backend>
  requires offered<row_scaled_product_facet, Backend, float>
class float8_products<Backend, float8_rows> : public Backend {
  using memory = space_of<Backend>;

 public:
  using Backend::Backend;
  using scales_operands = float8_rows;
  /// Greatest magnitudes are in the memory of tensors.
  using scales_in_memory = memory;

  /// The greatest magnitudes of the rows of op(a) and, behind them, of the columns of op(b), until the next call.
  template <transpose TA, transpose TB>
  row_view<float, memory> greatest_of(matrix_view<const float, memory> a, matrix_view<const float, memory> b) {
    constexpr transpose columns_of_b = TB == transpose::yes ? transpose::no : transpose::yes;
    const std::int64_t rows = a.extent(TA == transpose::yes ? 1 : 0), columns = b.extent(TB == transpose::yes ? 0 : 1);
    float* const found = greatest_.of(this->queue(), rows + columns, "scales of products in 8 bits");
    run<ops::find_greatest_of_rows<TA>>(own(), a, row_at<memory>(found, rows));
    run<ops::find_greatest_of_rows<columns_of_b>>(own(), b, row_at<memory>(found + rows, columns));
    return row_at<memory>(found, rows + columns);
  }
  /// c = beta c + op(a) op(b), for what `greatest_of` found. Shapes and errors: those of `matmul`.
  template <transpose TA, transpose TB, float8_operand A, float8_operand B>
  void scaled_matmul(matrix_view<const float, memory> a, matrix_view<const float, memory> b,
                     matrix_view<float, memory> c, row_view<const float, memory> greatest, float beta = 0) {
    static_assert(std::is_same_v<float8_rows::value, float8_rows::gradient>);
    run<ops::row_scaled_product<TA, TB, float8_rows::value, float8_rows::value, float>>(
        own(), a, b, c, row_at<memory>(greatest.address(), c.extent(0)),
        row_at<memory>(greatest.address() + c.extent(0), c.extent(1)), beta);
  }

 private:
  Backend& own() noexcept { return *this; }
  detail::growing_room<float, memory> greatest_{};
};

}  // namespace heddle::inline v0::compute

// heddle/compute/weight_formats.hpp: storage formats of weights: float, bf16, int8.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_list.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {

/// A block of weights in 8 bits each: w is about scale * code, with the code from -127 to 127.
struct q8_scale {
  float scale = 0;
  /// The code nearest to w / scale, ties to even. 0 where the scale is 0.
  std::int8_t code(float w) const noexcept {
    if (scale == 0.0f) return 0;
    const double nearest = std::nearbyint(static_cast<double>(w) / static_cast<double>(scale));
    return static_cast<std::int8_t>((std::clamp)(nearest, -127.0, 127.0));
  }
  /// The least number of bf16 that is not below this scale, at most 1/128 above it.
  q8_scale rounded_up_to_bf16() const noexcept {
    return {bf16::from_bits(static_cast<std::uint16_t>((heddle::detail::float_bits(scale) + 0xffffu) >> 16))};
  }
};

/// The scale of `count` weights that lie `stride` elements apart: the greatest magnitude over 127, rounded to float.
/// Errors: `layout_error` for a weight that is not finite.
inline q8_scale q8_scale_of(const float* w, std::int64_t count, std::int64_t stride = 1) {
  float greatest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = w[i * stride];
    if (!std::isfinite(x))
      throw layout_error("heddle: weights in 8 bits must be finite, got " + number_text(x) + " as number " +
                         std::to_string(i) + " of a block");
    greatest = (std::max)(greatest, std::abs(x));
  }
  return {static_cast<float>(static_cast<double>(greatest) / 127.0)};
}

/// Weights as they are, 4 bytes each.
struct f32_weights {
  using code = float;
  static constexpr bool has_scales = false;
  static constexpr std::int64_t block = 256;  ///< terms that a product adds up before it adds them to the others
  static constexpr double bytes_per_weight = 4;
};
/// Weights rounded to the nearest bf16, 2 bytes each.
struct bf16_weights {
  using code = bf16;
  static constexpr bool has_scales = false;
  static constexpr std::int64_t block = 256;
  static constexpr double bytes_per_weight = 2;
};
/// Weights in 8 bits each, and one float scale for `Block` of them that lie one behind the other along the dimension that a product
/// adds up. An error of a weight is at most half a scale, which is the greatest magnitude of its block over 254.
template <std::int64_t Block = 32>
struct q8_weights {
  static_assert(Block > 0 && Block % 4 == 0, "heddle: q8_weights<Block>: a block has a multiple of 4 weights");
  using code = std::int8_t;
  using scale = float;
  static constexpr bool has_scales = true;
  static constexpr std::int64_t block = Block;
  static constexpr double bytes_per_weight = 1.0 + 4.0 / static_cast<double>(Block);
};
/// Weights and activations in 8 bits each (W8A8): products multiply integers. Weights have a scale in bf16 for `Block` of them, rounded up, so
/// an error of a weight is at most the greatest magnitude of its block over 252. Each row of x is rounded as it comes, in the same blocks:
/// to the nearest multiple of the greatest magnitude over 127, so that it does not depend on other rows. A block of a row with a number that
/// is not finite makes all of that row's results not a number; one without a magnitude of 2^-100 counts as zeros.
/// A result is the sum over blocks, in order, of the exact sum of products of codes times the weights' scale, rounded to float, times the
/// row's: the same bits on every processor, whatever the other rows and the number of threads.
template <std::int64_t Block = 32>
struct w8a8_weights {
  static_assert(Block > 0 && Block % 4 == 0 && Block <= 1024,
                "heddle: w8a8_weights<Block>: a block has a multiple of 4 weights, at most 1024");
  using code = std::int8_t;
  using scale = bf16;
  static constexpr bool has_scales = true;
  static constexpr bool rounds_activations = true;
  static constexpr std::int64_t block = Block;
  static constexpr double bytes_per_weight = 1.0 + 2.0 / static_cast<double>(Block);
};

/// A format of weights: `code` is what is stored for a weight, and each `block` codes along the contraction have a `scale` if
/// `has_scales`.
template <class F>
concept weight_format = requires {
  typename F::code;
  { F::has_scales } -> std::convertible_to<bool>;
  { F::block } -> std::convertible_to<std::int64_t>;
  { F::bytes_per_weight } -> std::convertible_to<double>;
};

namespace detail {
template <class F>
using scale_member = typename F::scale;
template <class F>
using scale_of_format = member_or<float, scale_member, F>;
}  // namespace detail

/// Whether products round their other operand to 8 bits.
template <weight_format F>
inline constexpr bool rounds_activations = requires { requires F::rounds_activations; };

}  // namespace heddle::inline v0::compute

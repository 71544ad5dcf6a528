// heddle/core/float8.hpp: the element types float8_e4m3 and float8_e5m2, with conversions.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0 {

namespace detail {
// Bits of a binary format of 8 bits with `Mantissa` bits behind the point and an exponent of this bias, whose largest finite number has
// the code `Largest`.
template <int Mantissa, std::uint32_t Bias, std::uint32_t Largest>
struct float8_format {
  static constexpr std::uint32_t shift = 23 - Mantissa, rebias = (127 - Bias) << 23;
  static constexpr std::uint32_t smallest_normal = (128 - Bias) << 23;  // of float
  // The last place of this float is the smallest subnormal number, so that an addition rounds to it.
  static constexpr std::uint32_t rounder = (128 - Bias - Mantissa + 23) << 23;

  // To the nearest, ties to even; what is larger than the largest number becomes that. A NaN has all bits behind the sign.
  HEDDLE_HD static constexpr std::uint8_t rounded(std::uint32_t u) noexcept {
    const std::uint32_t size = u & 0x7fffffffu;
    const bool is_tiny = size < smallest_normal;
    const std::uint32_t large = choose_bits(is_tiny, smallest_normal, size);
    const std::uint32_t normal = (large + ((1u << (shift - 1)) - 1) + ((large >> shift) & 1u) - rebias) >> shift;
    const std::uint32_t tame = choose_bits(is_tiny, size, 0u);
    const std::uint32_t tiny = float_bits(bits_float(tame) + bits_float(rounder)) - rounder;
    const std::uint32_t code = choose_bits(is_tiny, tiny, choose_bits(normal > Largest, Largest, normal));
    return static_cast<std::uint8_t>(((u >> 24) & 0x80u) | choose_bits(size > 0x7f800000u, 0x7fu, code));
  }
  // The number of a code, as a float; not of codes beyond the largest number.
  HEDDLE_HD static constexpr std::uint32_t widened(std::uint32_t code) noexcept {
    const std::uint32_t rest = code & 0x7fu;
    const std::uint32_t tiny = float_bits(bits_float((rest << shift) + smallest_normal) - bits_float(smallest_normal));
    const std::uint32_t finite = choose_bits(rest < (1u << Mantissa), tiny, (rest << shift) + rebias);
    return ((code & 0x80u) << 24) | finite;
  }
};
}  // namespace detail

/// A number of 8 bits: 1 sign, 4 exponent and 3 mantissa bits (unit roundoff 2^-4), up to 448, down to 2^-9; no infinities, one NaN of each
/// sign. Converts to float exactly and by itself; back only when asked, to the nearest, ties to even. What is beyond 448,
/// infinities too, becomes 448. A NaN stays a NaN. `T{}` is zero; `T x;` is not initialised.
/// Source: Micikevicius et al. 2022, arXiv:2209.05433 (E4M3).
struct float8_e4m3 {
  static constexpr float largest = 448;
  float8_e4m3() = default;
  HEDDLE_HD explicit constexpr float8_e4m3(float x) noexcept : bits(format::rounded(detail::float_bits(x))) {}
  HEDDLE_HD constexpr operator float() const noexcept {
    const std::uint32_t nan = (std::uint32_t{bits} & 0x80u) << 24 | 0x7fc00000u;
    return detail::bits_float(detail::choose_bits((bits & 0x7fu) == 0x7fu, nan, format::widened(bits)));
  }
  HEDDLE_HD static constexpr float8_e4m3 from_bits(std::uint8_t bits) noexcept {
    return __builtin_bit_cast(float8_e4m3, bits);
  }

  std::uint8_t bits;

 private:
  using format = detail::float8_format<3, 7, 0x7e>;
};

/// A number of 8 bits: 1 sign, 5 exponent and 2 mantissa bits (unit roundoff 2^-3), up to 57344, down to 2^-16, as IEEE 754 has it with
/// infinities and NaN. Conversions as those of `float8_e4m3`: what is beyond 57344, infinities too, becomes 57344.
/// Source: Micikevicius et al. 2022, arXiv:2209.05433 (E5M2).
struct float8_e5m2 {
  static constexpr float largest = 57344;
  float8_e5m2() = default;
  HEDDLE_HD explicit constexpr float8_e5m2(float x) noexcept : bits(format::rounded(detail::float_bits(x))) {}
  HEDDLE_HD constexpr operator float() const noexcept {
    const std::uint32_t rest = bits & 0x7fu;
    const std::uint32_t special = (std::uint32_t{bits} & 0x80u) << 24 | 0x7f800000u | (rest & 3u) << 21;
    return detail::bits_float(detail::choose_bits(rest >= 0x7cu, special, format::widened(bits)));
  }
  HEDDLE_HD static constexpr float8_e5m2 from_bits(std::uint8_t bits) noexcept {
    return __builtin_bit_cast(float8_e5m2, bits);
  }

  std::uint8_t bits;

 private:
  using format = detail::float8_format<2, 15, 0x7b>;
};

static_assert(sizeof(float8_e4m3) == 1 && sizeof(float8_e5m2) == 1);

/// The formats of products in 8 bits whose operands have a scale each: weights and activations are `float8_e4m3`, gradients of activations
/// `float8_e5m2`, whose range is wider.
struct float8 {
  using value = float8_e4m3;
  using gradient = float8_e5m2;
};

/// The formats of products in 8 bits where each row of the left operand and each column of the right one has a scale, a power of two: all are
/// `float8_e4m3`, as a row needs less range than a tensor.
/// Source: torchao, `float8/config.py`, recipe `rowwise`.
struct float8_rows {
  using value = float8_e4m3;
  using gradient = float8_e4m3;
};

}  // namespace heddle::inline v0

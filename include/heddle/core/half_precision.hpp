// heddle/core/half_precision.hpp: the element types bf16 and f16, with conversions.
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>
#include <limits>
#include <type_traits>

namespace heddle::inline v0 {

namespace detail {
HEDDLE_HD constexpr std::uint32_t float_bits(float x) noexcept {
  return __builtin_bit_cast(std::uint32_t, x);
}
HEDDLE_HD constexpr float bits_float(std::uint32_t x) noexcept {
  return __builtin_bit_cast(float, x);
}
// `condition ? yes : no` without a branch: compilers vectorise loops over it at every level of optimisation.
HEDDLE_HD constexpr std::uint32_t choose_bits(bool condition, std::uint32_t yes, std::uint32_t no) noexcept {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}
}  // namespace detail

/// A float in 16 bits with the exponents of float: 1 sign, 8 exponent and 7 mantissa bits (unit roundoff 2^-8). Converts
/// to float exactly and by itself, so that arithmetic is that of float; back only when asked, to the nearest, ties to
/// even. A NaN stays a NaN, infinities and subnormal numbers are kept. `T{}` is zero; `T x;` is not initialised.
struct bf16 {
  bf16() = default;
  HEDDLE_HD explicit constexpr bf16(float x) noexcept : bits(rounded(detail::float_bits(x))) {}
  HEDDLE_HD constexpr operator float() const noexcept { return detail::bits_float(std::uint32_t{bits} << 16); }
  HEDDLE_HD static constexpr bf16 from_bits(std::uint16_t bits) noexcept { return __builtin_bit_cast(bf16, bits); }

  std::uint16_t bits;

 private:
  // A NaN whose upper bits are all zero would become an infinity: it is made quiet.
  HEDDLE_HD static constexpr std::uint16_t rounded(std::uint32_t u) noexcept {
    const std::uint32_t nearest = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    return static_cast<std::uint16_t>(detail::choose_bits((u & 0x7fffffffu) > 0x7f800000u, quiet, nearest));
  }
};

/// The 16-bit float of IEEE 754: 1 sign, 5 exponent and 10 mantissa bits (unit roundoff 2^-11, largest number 65504).
/// Conversions as those of `bf16`; what is too large becomes an infinity.
struct f16 {
  f16() = default;
  HEDDLE_HD explicit constexpr f16(float x) noexcept : bits(rounded(detail::float_bits(x))) {}
  HEDDLE_HD constexpr operator float() const noexcept {
    const std::uint32_t rest = std::uint32_t{bits} & 0x7fffu;
    const std::uint32_t normal = (rest << 13) + (112u << 23);  // the exponent's bias: 127 - 15
    const std::uint32_t tiny = detail::float_bits(detail::bits_float((rest << 13) + (113u << 23)) - 0x1p-14f);
    const std::uint32_t finite = detail::choose_bits(rest < 0x400u, tiny, normal);
    const std::uint32_t sign = (std::uint32_t{bits} & 0x8000u) << 16;
    return detail::bits_float(sign | detail::choose_bits(rest >= 0x7c00u, normal + (112u << 23), finite));
  }
  HEDDLE_HD static constexpr f16 from_bits(std::uint16_t bits) noexcept { return __builtin_bit_cast(f16, bits); }

  std::uint16_t bits;

 private:
  HEDDLE_HD static constexpr std::uint16_t rounded(std::uint32_t u) noexcept {
    const std::uint32_t size = u & 0x7fffffffu;
    const std::uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
    // Below 2^-14: the last place of 0.5f is the smallest subnormal number, so that the addition rounds.
    const bool is_tiny = size < 0x38800000u;
    const std::uint32_t tame = detail::choose_bits(is_tiny, size, 0u);
    const std::uint32_t tiny = detail::float_bits(detail::bits_float(tame) + 0.5f) - 0x3f000000u;
    const std::uint32_t finite = detail::choose_bits(is_tiny, tiny, normal);
    const std::uint32_t nan = 0x7e00u | ((size >> 13) & 0x3ffu);
    const std::uint32_t large = detail::choose_bits(size > 0x7f800000u, nan, 0x7c00u);
    return static_cast<std::uint16_t>(((u >> 16) & 0x8000u) | detail::choose_bits(size >= 0x477ff000u, large, finite));
  }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

/// `bf16` or `f16`.
template <class T>
inline constexpr bool is_half_precision = false;
template <>
inline constexpr bool is_half_precision<bf16> = true;
template <>
inline constexpr bool is_half_precision<f16> = true;

/// The type that sums and statistics of numbers of type T have: float for 16-bit types, else T itself.
template <class T>
using sum_of_type = std::conditional_t<is_half_precision<std::remove_cv_t<T>>, float, std::remove_cv_t<T>>;

namespace detail {
// The float next to x on the side of zero, its last bit set if it is not x. Rounded to a type with two bits less or fewer
// it gives what x itself would; the nearest float would round a second time.
// Source: Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd".
HEDDLE_HD constexpr float rounded_to_odd(double x) noexcept {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  const bool inexact = (back < x) | (back > x);
  const bool away = inexact & ((back > x) == (x > 0));
  return bits_float((float_bits(nearest) - static_cast<std::uint32_t>(away)) | static_cast<std::uint32_t>(inexact));
}

}  // namespace detail

/// `x` as a number of another type: rounded to the nearest, ties to even, rounded once.
template <class To, class From>
HEDDLE_HD constexpr To converted(From x) noexcept {
  if constexpr (is_half_precision<To> && std::is_same_v<From, double>)
    return To(detail::rounded_to_odd(x));
  else if constexpr (is_half_precision<To>)
    return To(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

/// A finite number of float as a bf16, upwards or downwards with the probability that makes the mean exact: `random16`
/// is uniform in [0, 65536). Infinities and NaN as they are; a number beyond the largest bf16 may become an infinity.
/// Source: Gupta et al. 2015, arXiv:1502.02551, section 3.
HEDDLE_HD constexpr bf16 round_stochastically(float x, std::uint32_t random16) noexcept {
  const std::uint32_t u = detail::float_bits(x);
  const bool finite = (u & 0x7f800000u) != 0x7f800000u;
  const std::uint32_t drawn = (u + (random16 & 0xffffu)) >> 16;
  return bf16::from_bits(static_cast<std::uint16_t>(finite ? drawn : bf16(x).bits));
}

}  // namespace heddle::inline v0

namespace heddle::inline v0::detail {

// How many powers of ten lie in so many powers of two, towards zero.
constexpr int powers_of_ten(int of_two) noexcept {
  return of_two * 30103 / 100000;
}

// What generic code asks of a binary format of 16 bits: one for the sign, `Digits` - 1 of the mantissa, the others of the exponent.
template <class T, int Digits>
struct half_limits {
 private:
  static constexpr std::uint16_t one = 1 << (Digits - 1);  // the exponent's lowest bit
  static constexpr std::uint16_t infinite = 0x8000 - one;  // all bits of the exponent

 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false,
                        is_iec559 = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true, is_bounded = true;
  static constexpr bool is_modulo = false, traps = false, tinyness_before = false;
  static constexpr int radix = 2, digits = Digits;
  static constexpr int max_exponent = 1 << (15 - Digits), min_exponent = 3 - max_exponent;
  static constexpr int digits10 = powers_of_ten(Digits - 1), max_digits10 = powers_of_ten(Digits) + 2;
  static constexpr int min_exponent10 = powers_of_ten(min_exponent - 1), max_exponent10 = powers_of_ten(max_exponent);
  static constexpr std::float_round_style round_style = std::round_to_nearest;
  static constexpr T(min)() noexcept { return T::from_bits(one); }
  static constexpr T(max)() noexcept { return T::from_bits(infinite - 1); }
  static constexpr T lowest() noexcept { return T::from_bits(0x8000 | (infinite - 1)); }
  static constexpr T epsilon() noexcept { return T(1.0f / one); }
  static constexpr T round_error() noexcept { return T(0.5f); }
  static constexpr T infinity() noexcept { return T::from_bits(infinite); }
  static constexpr T quiet_NaN() noexcept { return T::from_bits(infinite | one / 2); }
  static constexpr T signaling_NaN() noexcept { return T::from_bits(infinite | one / 4); }
  static constexpr T denorm_min() noexcept { return T::from_bits(1); }
};

}  // namespace heddle::inline v0::detail

template <>
struct std::numeric_limits<heddle::bf16> : heddle::detail::half_limits<heddle::bf16, 8> {};

template <>
struct std::numeric_limits<heddle::f16> : heddle::detail::half_limits<heddle::f16, 11> {
  static constexpr bool is_iec559 = true;
};

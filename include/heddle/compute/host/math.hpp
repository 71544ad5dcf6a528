// heddle/compute/host/math.hpp: exp and relatives in forms that vectorise.
#pragma once

// Rounding a float by adding and subtracting a large one, and looking for NaN, mean something else under these flags.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
#error \
    "heddle: the host kernels need IEEE arithmetic: compile this file without -ffast-math, -Ofast and -fassociative-math"
#endif

#include <heddle/compute/host/native_vector.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cmath>
#include <limits>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

template <class T>
struct exp_constants;
template <>
struct exp_constants<float> {
  using bits = std::uint32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr float round = 0x1.8p23f;          // added and taken away again: rounds to an integer
  static constexpr float bias = 0x1.8p23f + 127.0f;  // leaves n + 127 in the low bits
  static constexpr float ln2_high = 0x1.62e4p-1f;    // 14 bits: exact when multiplied by n
  static constexpr float ln2_low = 0x1.7f7d1cp-20f;  // ln 2 - ln2_high
  static constexpr float highest = 89.0f;            // beyond these the result is infinite, or 0
  static constexpr float lowest = -104.0f;
  static constexpr int degree = 7;
};
template <>
struct exp_constants<double> {
  using bits = std::uint64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr double round = 0x1.8p52;
  static constexpr double bias = 0x1.8p52 + 1023.0;
  static constexpr double ln2_high = 0x1.62e42fefa38p-1;
  static constexpr double ln2_low = 0x1.ef35793c7673p-45;
  static constexpr double highest = 710.0;
  static constexpr double lowest = -746.0;
  static constexpr int degree = 13;
};

/// 1/i! for the Taylor series.
template <class T>
inline constexpr T inverse_factorial(int i) {
  long double f = 1;
  for (int j = 2; j <= i; ++j) f *= static_cast<long double>(j);
  return static_cast<T>(1 / f);
}

/// `condition ? yes : no` in bits: compilers turn the operator into jumps here and there, and then do not vectorise.
template <std::floating_point T>
inline T choose(bool condition, T yes, T no) noexcept {
  using bits = typename exp_constants<T>::bits;
  const bits mask = static_cast<bits>(bits{0} - static_cast<bits>(condition));
  return std::bit_cast<T>(static_cast<bits>((std::bit_cast<bits>(yes) & mask) | (std::bit_cast<bits>(no) & ~mask)));
}

/// 2^n for a whole number n in the range of normal numbers.
template <std::floating_point T>
inline T power_of_two(T n) noexcept {
  using c = exp_constants<T>;
  using bits = typename c::bits;
  return std::bit_cast<T>(static_cast<bits>(std::bit_cast<bits>(n + c::bias) << c::mantissa_bits));
}

/// The Taylor polynomial of e^r, highest power first.
template <int Term, int Degree, std::floating_point T>
inline T exp_polynomial(T r, T sum) noexcept {
  if constexpr (Term > Degree) {
    return sum;
  } else {
    constexpr T coefficient = inverse_factorial<T>(Degree - Term);
    return exp_polynomial<Term + 1, Degree>(r, sum * r + coefficient);
  }
}

/// e^x without branches or calls: within 2 units in the last place, gradual underflow, inf for large x, 0 for -inf,
/// NaN for NaN. e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2) / 2; 2^n in two factors, because n may lie
/// outside the exponents of normal numbers.
template <std::floating_point T>
inline T exp_lane(T x) noexcept {
  using c = exp_constants<T>;
  constexpr T log2_e = static_cast<T>(1.44269504088896340735992468100189214L);
  const T below = choose(x < c::lowest, c::lowest, x);  // comparisons with NaN are false: NaN goes through
  const T inside = choose(below > c::highest, c::highest, below);
  const T n = (inside * log2_e + c::round) - c::round;
  const T r = (inside - n * c::ln2_high) - n * c::ln2_low;
  const T p = exp_polynomial<1, c::degree>(r, inverse_factorial<T>(c::degree));
  const T half = (n * T(0.5) + c::round) - c::round;
  return p * power_of_two(half) * power_of_two(n - half);
}

/// artanh(z) / z as a polynomial of z^2, highest power first.
template <int Term, std::floating_point T>
inline T artanh_polynomial(T square, T sum) noexcept {
  if constexpr (Term < 0) {
    return sum;
  } else {
    constexpr T coefficient = T(1) / T(2 * Term + 1);
    return artanh_polynomial<Term - 1>(square, sum * square + coefficient);
  }
}

/// log(1 + u) for u from 0 to 1, without branches or calls: 2 artanh(z) with z = u / (2 + u) <= 1/3.
template <std::floating_point T>
inline T log1p_lane(T u) noexcept {
  const T z = u / (T(2) + u);
  return T(2) * z * artanh_polynomial<std::is_same_v<T, float> ? 7 : 16>(z * z, T(0));
}

/// 1 / (1 + e^-x).
template <std::floating_point T>
inline T sigmoid_lane(T x) noexcept {
  return T(1) / (T(1) + exp_lane(-x));
}

/// tanh(x), without branches or calls: below 1/2, where 1 - e^-2x cancels, by Lambert's continued fraction.
template <std::floating_point T>
inline T tanh_lane(T x) noexcept {
  const T size = choose(x < T(0), -x, x), square = x * x, e = exp_lane(T(-2) * size);
  T above = T(1), below = T(1), above_before = T(0), below_before = T(1);
  for (int n = 3; n <= (std::is_same_v<T, float> ? 9 : 15); n += 2) {
    const T next_above = T(n) * above + square * above_before, next_below = T(n) * below + square * below_before;
    above_before = above, above = next_above;
    below_before = below, below = next_below;
  }
  const T large = (T(1) - e) / (T(1) + e);
  return choose(size < T(0.5), x * above / below, choose(x < T(0), -large, large));
}

// GELU in its tanh form: x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), which is x sigmoid(2u).
template <class T>
inline constexpr T gelu_twice_root = static_cast<T>(1.59576912160573071175978423973752747L);  // 2 sqrt(2/pi)
template <class T>
inline constexpr T gelu_cubic = static_cast<T>(0.044715L);

template <std::floating_point T>
inline T gelu_lane(T x) noexcept {
  return x * sigmoid_lane(gelu_twice_root<T> * (x + gelu_cubic<T> * x * x * x));
}

template <std::floating_point T>
inline T gelu_derivative_lane(T x) noexcept {
  const T e = exp_lane(-gelu_twice_root<T> * (x + gelu_cubic<T> * x * x * x));
  const T s = T(1) / (T(1) + e);
  const T rest = choose(e < T(1), e * s, T(1) - s);  // 1 - s without cancellation, and without inf * 0
  const T slope = gelu_twice_root<T> * (T(1) + T(3) * gelu_cubic<T> * x * x);
  return s + x * s * rest * slope;
}

/// Square roots of `Count` values, a multiple of 8. g++ does not vectorise a loop over std::sqrt, because sqrt must set
/// errno for negative values (and does not let a single function off that duty), so it is told the instruction.
template <int Count, std::floating_point T>
inline void square_roots(const T* x, T* root) noexcept {
#if defined(__clang__)
#if __has_builtin(__builtin_elementwise_sqrt)
  for (int i = 0; i < Count; ++i) root[i] = __builtin_elementwise_sqrt(x[i]);
#else
  for (int i = 0; i < Count; ++i) root[i] = std::sqrt(x[i]);
#endif
#elif defined(__GNUC__) && defined(__SSE2__)
#if defined(__AVX__)
  constexpr int bytes = 32;
#else
  constexpr int bytes = 16;
#endif
  constexpr int lanes = bytes / static_cast<int>(sizeof(T));
  using vector = typename native_vector<T, bytes>::type;
  const auto of = [](vector v) {
#if defined(__AVX__)
    if constexpr (std::is_same_v<T, float>)
      return __builtin_ia32_sqrtps256(v);
    else
      return __builtin_ia32_sqrtpd256(v);
#else
    if constexpr (std::is_same_v<T, float>)
      return __builtin_ia32_sqrtps(v);
    else
      return __builtin_ia32_sqrtpd(v);
#endif
  };
  static_assert(Count % lanes == 0);
  for (int i = 0; i < Count; i += lanes) {
    vector v;
    __builtin_memcpy(&v, x + i, sizeof v);
    v = of(v);
    __builtin_memcpy(root + i, &v, sizeof v);
  }
#else
  for (int i = 0; i < Count; ++i) root[i] = std::sqrt(x[i]);
#endif
}

}  // namespace heddle::inline v0::compute::detail

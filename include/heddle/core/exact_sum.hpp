// heddle/core/exact_sum.hpp: sums of doubles without rounding, the same in any order.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle::inline v0 {

/// An exact sum of doubles that is not negative: a fixed-point number of 2,144 bits in words of 32, so that additions commute and
/// associate. Ranks add theirs up by summing `words()`, as integers, in any order.
/// Memory: 68 words of 8 bytes. Numbers that are not finite make the sum NaN. At most 2^31 ranks or calls of `carry` in between.
/// Source: Kulisch, "Computer Arithmetic and Validity", 2008, chapter 8 (the long accumulator).
class exact_sum {
 public:
  static constexpr std::size_t size = 68;

  /// Shapes: any row of numbers that convert to double; their squares are rounded to double, each for itself.
  template <class T>
  void add_squares(std::span<const T> row) noexcept {
    if constexpr (sizeof(T) <= 4) {  // squares of floats are exact in a double
      std::size_t i = 0;
      for (; row.size() - i >= block; i += block)
        if (!add_block(row.data() + i)) add_squares_singly(row.subspan(i, block));
      row = row.subspan(i);
    }
    add_squares_singly(row);
  }
  template <class T>
  void add_squares_singly(std::span<const T> row) noexcept {
    for (std::size_t i = 0; i < row.size(); i += most_at_once) {
      const std::size_t end = row.size() - i < most_at_once ? row.size() : i + most_at_once;
      for (std::size_t k = i; k < end; ++k) add(static_cast<double>(row[k]) * static_cast<double>(row[k]));
      carry();
    }
  }
  /// One number, which may be negative as long as the sum is not; `carry` before 2^30 of them.
  void add(double x) noexcept {
    const auto bits = std::bit_cast<std::uint64_t>(x);
    const auto exponent = static_cast<unsigned>(bits >> 52) & 0x7ff;
    const std::int64_t sign = (bits >> 63) != 0 ? -1 : 1;
    if (exponent == 0x7ff) {  // not finite
      ++words_[size - 1];
      return;
    }
    const std::uint64_t hidden = exponent == 0 ? 0 : std::uint64_t{1} << 52;
    const unsigned at = exponent == 0 ? 0 : exponent - 1, shift = at % 32;
    const std::uint64_t m = (bits & ((std::uint64_t{1} << 52) - 1)) | hidden;
    std::int64_t* const to = words_.data() + at / 32;
    const std::uint64_t low = (m & 0xffffffffu) << shift, high = (m >> 32) << shift;  // 64 and 53 bits at most
    to[0] += sign * static_cast<std::int64_t>(low & 0xffffffffu);
    to[1] += sign * static_cast<std::int64_t>((low >> 32) + (high & 0xffffffffu));
    to[2] += sign * static_cast<std::int64_t>(high >> 32);
  }
  /// Brings words to 32 bits.
  void carry() noexcept {
    for (std::size_t k = 0; k + 2 < size; ++k) {
      words_[k + 1] += words_[k] >> 32;
      words_[k] &= 0xffffffff;
    }
  }
  /// For the sum over ranks, behind `carry`.
  std::span<std::int64_t> words() noexcept { return words_; }
  /// Rounded to a double: the same bits for the same sum.
  double value() noexcept {
    if (words_[size - 1] != 0) return std::numeric_limits<double>::quiet_NaN();
    carry();
    double sum = 0;
    for (std::size_t k = size - 1; k-- > 0;)
      sum += std::ldexp(static_cast<double>(words_[k]), 32 * static_cast<int>(k) - 1074);
    return sum;
  }

 private:
  static constexpr std::size_t block = 1024, lanes = 8;

  // Squares in lanes: each is cut at two powers of two, so that what is between them is added without rounding. False where some square
  // has bits below, or is not finite; then nothing has changed.
  // Source: Rump, Ogita, Oishi 2008, "Accurate floating-point summation part I" (extraction of a vector).
  template <class T>
  bool add_block(const T* x) noexcept {
    double most[lanes] = {};
    for (std::size_t i = 0; i < block; i += lanes)
      for (std::size_t l = 0; l < lanes; ++l) {
        const auto v = static_cast<double>(x[i + l]);
        most[l] = most[l] < v * v ? v * v : most[l];
      }
    double top = 0;
    for (const double m : most) top = top < m ? m : top;
    if (!(top > 1e-150 && top < 1e150)) return top == 0 && add_zeros(x);
    const int exponent = std::ilogb(top);
    double cuts[3];  // 1.5 * 2^52 units of what is left
    for (int k = 0; k < 3; ++k) cuts[k] = std::ldexp(1.5, 52 + exponent + 1 - 32 * (k + 1));
    double sums[3][lanes] = {}, rest[lanes] = {};
    for (std::size_t i = 0; i < block; i += lanes)
      for (std::size_t l = 0; l < lanes; ++l) {
        const auto v = static_cast<double>(x[i + l]);
        double left = v * v;
        for (int k = 0; k < 3; ++k) {
          const double shifted = left + cuts[k];
          const double part = shifted - cuts[k];
          sums[k][l] += part;
          left -= part;
        }
        rest[l] += left < 0 ? -left : left;
      }
    double lost = 0;
    for (const double r : rest) lost += r;
    if (!(lost == 0)) return false;
    for (const auto& of : sums)
      for (const double s : of) add(s);
    carry();
    return true;
  }
  template <class T>
  static bool add_zeros(const T* x) noexcept {
    bool zeros = true;
    for (std::size_t i = 0; i < block; ++i) zeros = zeros && static_cast<double>(x[i]) == 0;
    return zeros;
  }

  static constexpr std::size_t most_at_once = std::size_t{1} << 28;
  std::array<std::int64_t, size> words_{};  // the last counts what is not finite
};

}  // namespace heddle::inline v0

// heddle/core/random.hpp: counter-based random numbers: a pure function of (seed, stream, index).
#pragma once

#include <heddle/core/config.hpp>

#include <array>
#include <cstdint>

#if !defined(__GNUC__)
#include <cmath>
#endif

namespace heddle::inline v0 {

namespace detail {
// Functions of the C library, by the compiler's names where it has some: with g++ 12 <cmath>, which declares the special
// functions of mathematical physics, takes as long as all that a mesh needs.
#if defined(__GNUC__)
inline double square_root(double x) noexcept {
  return __builtin_sqrt(x);
}
inline double logarithm(double x) noexcept {
  return __builtin_log(x);
}
inline double cosine(double x) noexcept {
  return __builtin_cos(x);
}
#else
inline double square_root(double x) noexcept {
  return std::sqrt(x);
}
inline double logarithm(double x) noexcept {
  return std::log(x);
}
inline double cosine(double x) noexcept {
  return std::cos(x);
}
#endif

// What device code may compute with.
struct philox_words {
  std::uint32_t w[4];
};
HEDDLE_HD constexpr philox_words philox_rounds(philox_words c, std::uint32_t key, std::uint32_t other) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c.w[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c.w[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.w[1] ^ key, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.w[3] ^ other, static_cast<std::uint32_t>(a)}};
    key += 0x9E3779B9u;
    other += 0xBB67AE85u;
  }
  return c;
}
}  // namespace detail

/// Philox 4x32 with ten rounds: 128 random bits from a 128-bit counter and a 64-bit key.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) noexcept {
  const detail::philox_words c =
      detail::philox_rounds({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {c.w[0], c.w[1], c.w[2], c.w[3]};
}

/// Random numbers addressed by index: the value at index i does not depend on which rank asks, nor in which order, so
/// that any mesh draws the same numbers. `stream` separates uses of one seed (one stream per tensor, say).
class counter_random {
 public:
  constexpr counter_random(std::uint64_t seed, std::uint64_t stream) noexcept : seed_(seed), stream_(stream) {}

  /// 128 uniform bits for this index.
  constexpr std::array<std::uint32_t, 4> bits(std::uint64_t index) const noexcept {
    return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                       static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                      {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  }
  /// 16 uniform bits: part `at` % 8 of the 128 bits for index `at` / 8.
  HEDDLE_HD constexpr std::uint32_t bits16(std::uint64_t at) const noexcept {
    const std::uint64_t index = at / 8;
    const auto c =
        detail::philox_rounds({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)}},
                              static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32));
    return (c.w[at % 8 / 2] >> (16 * (at % 2))) & 0xffffu;
  }
  /// 64 uniform bits for this index.
  constexpr std::uint64_t integer(std::uint64_t index) const noexcept {
    const auto b = bits(index);
    return (std::uint64_t{b[1]} << 32) | b[0];
  }
  /// Uniform in [0, 1), 53 bits.
  constexpr double uniform(std::uint64_t index) const noexcept {
    return static_cast<double>(integer(index) >> 11) * 0x1.0p-53;
  }
  /// Standard normal, by the Box-Muller transform of this index's own bits.
  double normal(std::uint64_t index) const {
    const auto b = bits(index);
    const double u = (static_cast<double>(((std::uint64_t{b[1]} << 32) | b[0]) >> 11) + 1.0) * 0x1.0p-53;  // (0, 1]
    const double v = static_cast<double>(((std::uint64_t{b[3]} << 32) | b[2]) >> 11) * 0x1.0p-53;
    return detail::square_root(-2.0 * detail::logarithm(u)) * detail::cosine(6.283185307179586476925 * v);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace heddle::inline v0

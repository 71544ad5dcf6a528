// heddle/core/discrete_laplace.hpp: exact draws of the discrete Laplace distribution by counter.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/random.hpp>

#include <cstdint>

namespace heddle::inline v0 {

/// The words of Philox whose counters begin with three given words: the fourth counts the blocks of four words. A draw that
/// reads its own words gives the same bits on any rank, thread and machine. Not to be shared by threads.
class counter_words {
 public:
  HEDDLE_HD constexpr counter_words(std::uint64_t seed, std::uint32_t a, std::uint32_t b, std::uint32_t c) noexcept
      : seed_(seed), counter_{{a, b, c, 0}} {}

  /// The next 32 uniform bits. The words repeat after 2^34.
  HEDDLE_HD constexpr std::uint32_t next() noexcept {
    if (used_ == 4) {
      block_ =
          detail::philox_rounds(counter_, static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32));
      ++counter_.w[3];
      used_ = 0;
    }
    return block_.w[used_++];
  }
  /// Uniform in [0, n), exactly. Requires n > 0.
  /// Source: Lemire 2019, "Fast random integer generation in an interval", arXiv:1805.10941, algorithm 5.
  HEDDLE_HD constexpr std::uint32_t below(std::uint32_t n) noexcept {
    if (n == 1) return 0;
    std::uint64_t product = std::uint64_t{next()} * n;
    if (static_cast<std::uint32_t>(product) < n) {
      const std::uint32_t threshold = (0u - n) % n;
      while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next()} * n;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  std::uint64_t seed_;
  detail::philox_words counter_;
  detail::philox_words block_{};
  int used_ = 4;
};

/// A scale t = numerator / denominator, both positive.
struct laplace_scale {
  std::uint32_t numerator = 1;
  std::uint32_t denominator = 1;
};

namespace detail {
// True with probability exp(-n / d), exactly. Requires n <= d, d > 0. Source: algorithm 1 of the paper below, case gamma <= 1;
// its Bernoulli(n / (d k)) is drawn as Bernoulli(n / d) and Bernoulli(1 / k), so that no product leaves 32 bits.
HEDDLE_HD constexpr bool bernoulli_exp(counter_words& words, std::uint32_t n, std::uint32_t d) noexcept {
  std::uint32_t k = 1;
  while (words.below(d) < n && words.below(k) == 0) ++k;
  return k % 2 == 1;
}
}  // namespace detail

/// An integer k with probability (1 - q) / (1 + q) q^|k|, q = exp(-1 / t): integers throughout, so that no rounding leaks what
/// the noise should hide, and all compilers and devices draw the same.
/// Requires a numerator and a denominator of at least 1.
/// Source: Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy", arXiv:2004.00010, algorithm 2.
HEDDLE_HD constexpr std::int64_t discrete_laplace(counter_words& words, laplace_scale t) noexcept {
  for (;;) {
    const std::uint32_t rest = words.below(t.numerator);
    if (!detail::bernoulli_exp(words, rest, t.numerator)) continue;
    std::int64_t whole = 0;
    while (detail::bernoulli_exp(words, 1, 1)) ++whole;
    const std::int64_t size = (rest + std::int64_t{t.numerator} * whole) / t.denominator;
    const bool negative = words.below(2) == 1;
    if (negative && size == 0) continue;
    return negative ? -size : size;
  }
}

}  // namespace heddle::inline v0

// heddle/compute/spike_coding.hpp: integers as trains of spikes, and the counts of spikes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::compute {

/// What one spike of a row stands for: the mean magnitude over k, from 1e-5 to 1e4. A larger k makes more spikes. 1e-5 for no numbers.
/// Source: SpikingBrain, arXiv:2509.05276, section 3.3; the repository's `W8ASpike`.
inline float spike_threshold(std::span<const float> row, double k = 3) {
  double sum = 0;
  for (const float x : row) sum += std::abs(static_cast<double>(x));
  const double mean = row.empty() ? 0 : sum / static_cast<double>(row.size());
  return static_cast<float>((std::min)(1e4, (std::max)(1e-5, mean / k)));
}
/// The integer nearest to x / threshold, ties to even. Errors: `layout_error` beyond 2^24, and for what is not a number.
inline std::int32_t spike_integer(float x, float threshold) {
  const float nearest = std::nearbyint(x / threshold);
  if (!(std::abs(nearest) <= 16777216.0f))
    throw layout_error("heddle: spikes: a number over its threshold should be at most 2^24, got " +
                       number_text(x / threshold));
  return static_cast<std::int32_t>(nearest);
}

namespace detail {
[[noreturn]] inline void refuse_negative_spikes(std::int32_t n) {
  throw layout_error("heddle: spikes of this coding stand for numbers >= 0, got " + std::to_string(n) +
                     "; take ternary_spikes, signed_bit_spikes or twos_complement_spikes");
}
constexpr int bits_of(std::int64_t n) noexcept {
  int bits = 0;
  for (; n > 0; n >>= 1) ++bits;
  return bits > 0 ? bits : 1;
}
constexpr std::int64_t magnitude_of(std::int32_t n) noexcept {
  return n < 0 ? -std::int64_t{n} : std::int64_t{n};
}
}  // namespace detail

// A coding makes of an integer n with |n| <= most a train of `steps(most)` spikes, at least one step: n is the sum of weight(t, steps) * spike(n, t, steps) over t.

/// 0 or 1: n spikes, for n >= 0. Errors: `layout_error` for n < 0.
struct binary_spikes {
  static constexpr std::int64_t steps(std::int64_t most) noexcept { return most > 1 ? most : 1; }
  static constexpr std::int64_t weight(std::int64_t, std::int64_t) noexcept { return 1; }
  static constexpr int spike(std::int32_t n, std::int64_t t, std::int64_t) {
    if (n < 0) detail::refuse_negative_spikes(n);
    return t < n ? 1 : 0;
  }
};
/// -1, 0 or 1: |n| spikes of n's sign.
struct ternary_spikes {
  static constexpr std::int64_t steps(std::int64_t most) noexcept { return most > 1 ? most : 1; }
  static constexpr std::int64_t weight(std::int64_t, std::int64_t) noexcept { return 1; }
  static constexpr int spike(std::int32_t n, std::int64_t t, std::int64_t) noexcept {
    return t < detail::magnitude_of(n) ? (n < 0 ? -1 : 1) : 0;
  }
};
/// 0 or 1: the bits of n >= 0, the lowest first. Errors: `layout_error` for n < 0.
struct bit_spikes {
  static constexpr std::int64_t steps(std::int64_t most) noexcept { return detail::bits_of(most); }
  static constexpr std::int64_t weight(std::int64_t t, std::int64_t) noexcept { return std::int64_t{1} << t; }
  static constexpr int spike(std::int32_t n, std::int64_t t, std::int64_t) {
    if (n < 0) detail::refuse_negative_spikes(n);
    return static_cast<int>(n >> t & 1);
  }
};
/// -1, 0 or 1: the bits of |n|, with n's sign.
struct signed_bit_spikes {
  static constexpr std::int64_t steps(std::int64_t most) noexcept { return detail::bits_of(most); }
  static constexpr std::int64_t weight(std::int64_t t, std::int64_t) noexcept { return std::int64_t{1} << t; }
  static constexpr int spike(std::int32_t n, std::int64_t t, std::int64_t) noexcept {
    return static_cast<int>(detail::magnitude_of(n) >> t & 1) * (n < 0 ? -1 : 1);
  }
};
/// 0 or 1: n in two's complement, whose last step counts negative.
struct twos_complement_spikes {
  static constexpr std::int64_t steps(std::int64_t most) noexcept { return detail::bits_of(most) + 1; }
  static constexpr std::int64_t weight(std::int64_t t, std::int64_t steps) noexcept {
    return t + 1 == steps ? -(std::int64_t{1} << t) : std::int64_t{1} << t;
  }
  static constexpr int spike(std::int32_t n, std::int64_t t, std::int64_t) noexcept {
    return static_cast<int>(std::int64_t{n} >> t & 1);
  }
};

/// A coding of integers as spikes: how many steps it takes, what a spike weighs in each, and where the spikes are.
template <class C>
concept spike_coding = requires(std::int32_t n, std::int64_t t) {
  { C::steps(t) } -> std::same_as<std::int64_t>;
  { C::weight(t, t) } -> std::same_as<std::int64_t>;
  { C::spike(n, t, t) } -> std::same_as<int>;
};

/// The integer that a train of so many steps stands for.
template <spike_coding Coding>
constexpr std::int64_t integer_of_spikes(std::int32_t n, std::int64_t steps) {
  std::int64_t sum = 0;
  for (std::int64_t t = 0; t < steps; ++t) sum += Coding::weight(t, steps) * Coding::spike(n, t, steps);
  return sum;
}

/// Spikes of some integers, each a train of `steps`.
struct spike_counts {
  std::int64_t numbers = 0, steps = 0;
  std::int64_t spikes = 0;  ///< that are not 0
  std::int64_t silent = 0;  ///< numbers without a spike
  double each() const noexcept { return numbers > 0 ? static_cast<double>(spikes) / static_cast<double>(numbers) : 0; }
  /// Share of steps without a spike.
  double sparsity() const noexcept { return steps > 0 ? 1 - each() / static_cast<double>(steps) : 1; }
  friend bool operator==(const spike_counts&, const spike_counts&) = default;
};
/// In trains of `steps`; 0: as long as the largest needs.
template <spike_coding Coding>
spike_counts count_spikes(std::span<const std::int32_t> integers, std::int64_t steps = 0) {
  std::int64_t most = 0;
  for (const std::int32_t n : integers) most = (std::max)(most, detail::magnitude_of(n));
  spike_counts c{.numbers = static_cast<std::int64_t>(integers.size()),
                 .steps = steps > 0 ? steps : Coding::steps(most)};
  for (const std::int32_t n : integers) {
    std::int64_t own = 0;
    for (std::int64_t t = 0; t < c.steps; ++t) own += Coding::spike(n, t, c.steps) != 0;
    c.spikes += own;
    c.silent += own == 0;
  }
  return c;
}

/// Energy of an operation in pJ as the paper models it, which nobody measured: a spike adds an 8-bit weight.
struct modelled_energy {
  double spike = 0.03, int8_product = 0.23, fp16_product = 1.5;
};
/// `"1.13 spikes a number in 3 steps, 18.4 % silent, sparsity 62.3 %; modelled 0.034 pJ a weight (FP16 1.5, INT8 0.23)"`.
inline std::string to_string(const spike_counts& c, const modelled_energy& e = {}) {
  const auto rounded = [](double x, double unit) { return number_text(std::nearbyint(x * unit) / unit); };
  const double silent = c.numbers > 0 ? 100.0 * static_cast<double>(c.silent) / static_cast<double>(c.numbers) : 0;
  return rounded(c.each(), 100) + " spikes a number in " + std::to_string(c.steps) + " steps, " + rounded(silent, 10) +
         " % silent, sparsity " + rounded(100 * c.sparsity(), 10) + " %; modelled " +
         rounded(c.each() * e.spike, 1000) + " pJ a weight (FP16 " + number_text(e.fp16_product) + ", INT8 " +
         number_text(e.int8_product) + ")";
}

/// y = W n by spikes: for each step the weights of the numbers that spike are added or taken away, and the sums added up by the steps' weights. The same integers as products.
/// Shapes: weights [rows, numbers], row-major, integers [numbers], y [rows].
/// Errors: `layout_error` for sizes that do not belong together.
template <spike_coding Coding>
void add_by_spikes(std::span<const std::int8_t> weights, std::span<const std::int32_t> integers,
                   std::span<std::int64_t> y) {
  const std::size_t n = integers.size();
  if (weights.size() != n * y.size())
    throw layout_error("heddle: add_by_spikes: " + std::to_string(y.size()) + " rows of " + std::to_string(n) +
                       " weights should be " + std::to_string(n * y.size()) + ", got " +
                       std::to_string(weights.size()));
  std::int64_t most = 0;
  for (const std::int32_t x : integers) most = (std::max)(most, detail::magnitude_of(x));
  const std::int64_t steps = Coding::steps(most);
  std::fill(y.begin(), y.end(), std::int64_t{0});
  for (std::int64_t t = 0; t < steps; ++t)
    for (std::size_t r = 0; r < y.size(); ++r) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const int s = Coding::spike(integers[i], t, steps);
        if (s > 0) sum += weights[r * n + i];
        if (s < 0) sum -= weights[r * n + i];
      }
      y[r] += Coding::weight(t, steps) * sum;
    }
}

}  // namespace heddle::inline v0::compute

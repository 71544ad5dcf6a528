// heddle/compute/spike_weights.hpp: 8-bit weights whose products count spikes.
#pragma once

#include <heddle/compute/spike_coding.hpp>
#include <heddle/compute/weight_formats.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace heddle::inline v0::compute {
namespace detail {
/// The bits of the greatest magnitude; those of infinity or more if one is not finite.
inline std::int32_t greatest_magnitude_bits(const float* x, std::int64_t count) noexcept {
  std::int32_t greatest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    greatest = (std::max)(greatest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  return greatest;
}
/// Rounds the groups of a row: x is about `*scale` times its code. `*sum` is of the codes.
template <std::int64_t Group>
struct spike_rounding {
  float threshold;  ///< not a number for a row with a number that is not finite
  void operator()(const float* x, std::int8_t* codes, float* scale, std::int32_t* sum) const noexcept {
    *sum = 0;
    *scale = threshold;
    if (std::isnan(threshold)) return void(std::memset(codes, 0, static_cast<std::size_t>(Group)));
    const float most = std::bit_cast<float>(greatest_magnitude_bits(x, Group)) / threshold;
    float unit = 1;  // one spike, or one for 2, 4, ... spikes where a number has more than 127
    while (!(most * unit < 127.5f)) unit /= 2;
    *scale = threshold / unit;
    std::int32_t all = 0;
    for (std::int64_t i = 0; i < Group; ++i) {
      // 1.5 * 2^23, whose last bit counts ones, makes the sum the nearest integer, ties to even: lanes have that, not `nearbyint`.
      const std::int32_t code = std::bit_cast<std::int32_t>(x[i] / threshold * unit + 12582912.0f) - 0x4b400000;
      codes[i] = static_cast<std::int8_t>(code);
      all += code;
    }
    *sum = all;
  }
};
}  // namespace detail

/// `w8a8_weights<Group>` with activations as SpikingBrain sends them: integers n, for trains of spikes, of a row x that is about v n, where the
/// threshold v is the mean of |x| over `K` (`spike_threshold`). n is the integer nearest to x / v, ties to even. In a group of a row where one
/// is above 127 all are the nearest multiples of the least power of two that brings them to 127 codes.
/// A result is the sum over groups, in order, of the exact sum of products of integers times the weights' scale, rounded to float, times v: the
/// same bits on every processor, and from `add_by_spikes` with any coding. It is no faster than with `w8a8_weights`.
/// A row with a number that is not finite has results that are not numbers. A rank that has a part of a row takes the mean of this part.
/// Source: SpikingBrain, arXiv:2509.05276, section 3.3; the repository's `W8ASpike` (K = 3, groups of 128, integers of any size).
template <std::int64_t Group = 128, int K = 3>
struct spike_weights {
  static_assert(Group > 0 && Group % 4 == 0 && Group <= 1024,
                "heddle: spike_weights<Group, K>: a group has a multiple of 4 weights, at most 1024; take 128");
  static_assert(K >= 1 && K <= 32,
                "heddle: spike_weights<Group, K>: a number of mean magnitude has K spikes, 1 to 32; take 3");
  using code = std::int8_t;
  using scale = bf16;
  static constexpr bool has_scales = true;
  static constexpr bool rounds_activations = true;
  static constexpr std::int64_t block = Group;
  static constexpr double bytes_per_weight = 1.0 + 2.0 / static_cast<double>(Group);

  /// What rounds the groups of a row of activations.
  static detail::spike_rounding<Group> rounding_of(const float* row, std::int64_t size) {
    if (detail::greatest_magnitude_bits(row, size) >= 0x7f800000) return {std::numeric_limits<float>::quiet_NaN()};
    return {spike_threshold({row, static_cast<std::size_t>(size)}, K)};
  }
};

}  // namespace heddle::inline v0::compute

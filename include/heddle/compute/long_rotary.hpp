// heddle/compute/long_rotary.hpp: LongRoPE: rotary frequencies divided by pair factors.
#pragma once

#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0::compute {

/// LongRoPE: the frequency of pair i is divided by `brief[i]`, or by `extended[i]` where there are more than `original` positions. `count` 0: no
/// scaling. Source: Ding et al. 2024, arXiv:2402.13753; "longrope" in Hugging Face's configurations.
struct long_rotary_scaling {
  static constexpr std::size_t most = 64;  ///< pairs
  std::int64_t count = 0;                  ///< of pairs that have factors
  double original = 4096;                  ///< positions that a model was first trained with
  double table_factor = 1;                 ///< what cosines and sines are multiplied by
  std::array<double, most> brief{}, extended{};
  friend constexpr bool operator==(const long_rotary_scaling&, const long_rotary_scaling&) = default;
};

/// Angle per position of each rotating pair under LongRoPE, for `positions` of them.
/// Errors: `config_error` for other numbers of pairs, or factors that are not positive.
inline std::vector<double> rotary_frequencies(std::int64_t rotating, double theta, const long_rotary_scaling& scaling,
                                              std::int64_t positions) {
  std::vector<double> frequencies = rotary_frequencies(rotating, theta);
  if (2 * scaling.count != rotating || frequencies.size() > scaling.most)
    throw config_error("heddle: rotary_frequencies: " + std::to_string(rotating) + " elements that rotate need " +
                       std::to_string(rotating / 2) + " factors, at most " + std::to_string(scaling.most) + ", got " +
                       std::to_string(scaling.count));
  const auto& factors = static_cast<double>(positions) > scaling.original ? scaling.extended : scaling.brief;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    if (!(factors[i] > 0 && std::isfinite(factors[i])))
      throw config_error("heddle: rotary_frequencies: factors should be positive and finite, got " +
                         number_text(factors[i]) + " for pair " + std::to_string(i));
    frequencies[i] /= factors[i];
  }
  return frequencies;
}

}  // namespace heddle::inline v0::compute

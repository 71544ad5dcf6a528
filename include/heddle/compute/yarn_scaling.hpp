// heddle/compute/yarn_scaling.hpp: YaRN: scaling of rotary frequencies and of scores.
#pragma once

#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

namespace heddle::inline v0::compute {

/// YaRN: pairs that turn more than `fast` times in `original` positions keep their frequency, those that turn less than `slow` times have it
/// divided by `factor`, and the index of a pair blends between these. `factor` 1: no scaling of frequencies.
/// Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4; "yarn" in Hugging Face's configurations, whose defaults these are.
struct yarn_scaling {
  double factor = 1;
  double fast = 32, slow = 1;  ///< turns; `beta_fast` and `beta_slow`
  double original = 4096;      ///< positions
  double mscale = 0;           ///< of `table_factor`; 0: as if it were 1, and `mscale_all` 0
  double mscale_all = 0;  ///< `mscale_all_dim`: of `score_factor`, and divides `table_factor` where `mscale` is not 0
  std::optional<double> attention_factor{};  ///< `table_factor` as it is given, whatever `factor` and `mscale` are
  bool whole = true;                         ///< the bounds of the blend are whole indices: `truncate`

  /// What cosines and sines are multiplied by.
  double table_factor() const {
    if (attention_factor) return *attention_factor;
    return mscale != 0 && mscale_all != 0 ? stretch(mscale) / stretch(mscale_all) : stretch(1);
  }
  /// What the scores of DeepSeek's attention are multiplied by besides.
  double score_factor() const { return mscale_all != 0 ? stretch(mscale_all) * stretch(mscale_all) : 1; }
  friend constexpr bool operator==(const yarn_scaling&, const yarn_scaling&) = default;

 private:
  double stretch(double by) const { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; }
};

/// Angle per position of each rotating pair under YaRN.
/// Errors: `config_error` for numbers out of range.
/// Source: Peng et al. 2023, arXiv:2309.00071, equations 17 to 23.
inline std::vector<double> rotary_frequencies(std::int64_t rotating, double theta, const yarn_scaling& scaling) {
  std::vector<double> frequencies = rotary_frequencies(rotating, theta);
  const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
  if (!positive(scaling.factor) || !positive(scaling.slow) || !(scaling.fast >= scaling.slow) ||
      !std::isfinite(scaling.fast) || !positive(scaling.original) || (scaling.factor != 1 && !(theta > 1)))
    throw config_error(
        "heddle: rotary_frequencies: factor, slow and original should be positive, fast at least slow and theta above "
        "1, got factor " +
        number_text(scaling.factor) + ", fast " + number_text(scaling.fast) + ", slow " +
        number_text(scaling.slow) + ", original " + number_text(scaling.original) + ", theta " +
        number_text(theta));
  if (scaling.factor == 1) return frequencies;
  // The index at which a pair turns so often in the original positions.
  const auto index_of = [&](double turns) {
    return static_cast<double>(rotating) * std::log(scaling.original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = index_of(scaling.fast), high = index_of(scaling.slow);
  if (scaling.whole) low = std::floor(low), high = std::ceil(high);
  low = (std::max)(low, 0.0);
  high = (std::min)(high, static_cast<double>(rotating - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= stretched / scaling.factor + (1 - stretched);
  }
  return frequencies;
}

}  // namespace heddle::inline v0::compute

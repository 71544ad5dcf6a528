// heddle/train/learning_rate.hpp: the learning rate of each step: linear warm-up, then a cosine.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::train {

/// Linear warm-up to `peak` over `warmup_steps`, then half a cosine down to `minimum` at `total_steps`, then `minimum`.
/// Step t < W: `peak*(t+1)/W`; after that `minimum + (1 + cos(pi r))/2 * (peak - minimum)`, r = (t-W)/(total-W).
/// Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5, without restarts.
struct warmup_cosine {
  double peak = 1e-3;
  double minimum = 0.0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< where the cosine ends; a trainer reads 0 as its own number of steps

  /// Errors: `config_error` naming the setting that cannot work.
  void validate() const;

  /// The rate at step `t`, counted from 0.
  double operator()(std::int64_t t) const {
    if (t < warmup_steps) return peak * static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
    if (t >= total_steps) return minimum;
    const double r = static_cast<double>(t - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
    return minimum + 0.5 * (1.0 + std::cos(3.141592653589793238463 * r)) * (peak - minimum);
  }
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/learning_rate.hpp>
#endif

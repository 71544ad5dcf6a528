// heddle/train/learning_rates.hpp: rates: constant, linear, decay, restarts, and others.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/train/learning_rate.hpp>

#include <cstdint>
#include <string>

/// Learning rates for `train::options<Config, Rate>`. Step t, counted from 0, has `peak*(t+1)/W` while t < W, the `warmup_steps`.
namespace heddle::inline v0::train::rates {

namespace detail {
// The settings that all have. Errors: `config_error` naming the one that cannot work.
HEDDLE_INLINE void require_warmup(double peak, double minimum, std::int64_t warmup_steps);
HEDDLE_INLINE void require_count(const char* name, std::int64_t n, std::int64_t least, std::int64_t most);
using train::detail::between, train::detail::half_cosine, train::detail::ratio, train::detail::warming;
}  // namespace detail

/// `peak` in all steps behind the warm-up.
struct constant {
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;

  /// Errors: `config_error` naming the setting that cannot work.
  void validate() const { detail::require_warmup(peak, 0, warmup_steps); }
  double greatest() const noexcept { return peak; }
  double operator()(std::int64_t t) const { return t < warmup_steps ? detail::warming(peak, t, warmup_steps) : peak; }
};

/// A line from `peak` behind the warm-up down to `minimum` at `total_steps`, then `minimum`.
/// Source: Devlin et al. 2018, arXiv:1810.04805, appendix A.2 (with minimum 0).
struct linear {
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< a trainer reads 0 as its own number of steps

  /// Errors: `config_error` naming the setting that cannot work.
  void validate() const;
  double greatest() const noexcept { return peak; }
  double operator()(std::int64_t t) const {
    if (t < warmup_steps) return detail::warming(peak, t, warmup_steps);
    if (t >= total_steps) return minimum;
    return detail::between(minimum, peak, detail::ratio(total_steps - t, total_steps - warmup_steps));
  }
};

/// `peak` behind the warm-up, and in the last `decay_steps` before `total_steps` a line down to `minimum`; neither may reach into the other.
/// Source: Hu et al. 2024, arXiv:2404.06395, section 4 (warm-up, stable, decay); Haegele et al. 2024, arXiv:2405.18392, section 3
/// (the linear decay).
struct warmup_stable_decay {
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  std::int64_t total_steps = 0;  ///< a trainer reads 0 as its own number of steps

  /// Errors: `config_error` naming the setting that cannot work.
  void validate() const;
  double greatest() const noexcept { return peak; }
  double operator()(std::int64_t t) const {
    if (t < warmup_steps) return detail::warming(peak, t, warmup_steps);
    if (t >= total_steps) return minimum;
    if (t < total_steps - decay_steps) return peak;
    return detail::between(minimum, peak, detail::ratio(total_steps - t, decay_steps));
  }
};

/// Half cosines from `peak` down to `minimum`, the first over `period` steps behind the warm-up, each next one `factor` times as long.
/// Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5 and section 3 (`factor`: T_mult).
struct cosine_with_restarts {
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t period = 100;
  std::int64_t factor = 1;

  /// Errors: `config_error` naming the setting that cannot work.
  void validate() const;
  double greatest() const noexcept { return peak; }
  double operator()(std::int64_t t) const {
    if (t < warmup_steps) return detail::warming(peak, t, warmup_steps);
    std::int64_t since = t - warmup_steps, length = period;
    if (factor == 1) since %= length;
    for (; since >= length; length *= factor) since -= length;
    return detail::between(minimum, peak, detail::half_cosine(detail::ratio(since, length)));
  }
};

/// All settings in words, as ranks compare them.
HEDDLE_INLINE std::string to_string(const constant& rate);
HEDDLE_INLINE std::string to_string(const linear& rate);
HEDDLE_INLINE std::string to_string(const warmup_stable_decay& rate);
HEDDLE_INLINE std::string to_string(const cosine_with_restarts& rate);

}  // namespace heddle::inline v0::train::rates

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/learning_rates.hpp>
#endif

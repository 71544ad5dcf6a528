// heddle/plan/atomization/safety.hpp: the longest duration safe for its window.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::plan::sja {

/// The kind of policies that judge whether a piece is safe.
struct safety_kind {};

/// Probability that a standard normal variable is at most x.
inline double normal_probability(double x) {
  return 0.5 * std::erfc(-x / 1.4142135623730950488);
}

/// The x with `normal_probability(x) == p`. Errors: `config_error` unless 0 < p < 1.
inline double normal_quantile(double p) {
  if (!(p > 0 && p < 1))
    throw config_error("heddle: a quantile needs a probability in (0, 1), got " + number_text(p));
  double low = -40, high = 40;
  for (int i = 0; i < 70; ++i) {
    const double middle = (low + high) / 2;
    (normal_probability(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// Unit times are normal, any two of them as correlated as the profile says, and so is the memory of each phase, however
/// phases depend on each other. A piece is safe in time, and safe in memory, if each is exceeded with a probability of at
/// most theta.
class normal_safety {
 public:
  using kind = safety_kind;

  /// Errors: `config_error` unless 0 < theta < 0.5.
  explicit normal_safety(double theta = 0.01) : theta_(theta) {
    if (!(theta > 0 && theta < 0.5))
      throw config_error("heddle: normal_safety: theta must be in (0, 0.5), got " + number_text(theta));
    z_ = -normal_quantile(theta);  // 1 - theta would round
  }

  double theta() const noexcept { return theta_; }
  /// Seconds of a piece of n units, set-up and finish included, that are not exceeded with probability 1 - theta.
  double seconds(const resource_profile& p, std::int64_t n) const {
    const auto units = static_cast<double>(n);
    const double pairs = p.unit_correlation * units * (units - 1);
    return p.set_up + units * p.unit + z_ * p.unit_sd * std::sqrt(units + pairs) + p.finish;
  }
  /// Whether units [first, first + n) stay below `bytes` in all phases they cross, with probability 1 - theta together:
  /// the probabilities that each exceeds it add up to theta at most. With one phase: mean + z(1 - theta) deviation <=
  /// bytes.
  bool fits(const resource_profile& p, std::int64_t first, std::int64_t n, double bytes) const {
    double exceeds = 0;
    for (const phase& f : p.phases) {
      if (f.from >= first + n || f.to <= first) continue;
      if (f.bytes_sd == 0) {
        if (f.bytes > bytes) return false;
        continue;
      }
      exceeds += normal_probability((f.bytes - bytes) / f.bytes_sd);
    }
    return exceeds <= theta_;
  }

 private:
  double theta_;
  double z_ = 0;
};

/// Only means count: for jobs that are known exactly.
struct certain_safety {
  using kind = safety_kind;
  double seconds(const resource_profile& p, std::int64_t n) const noexcept {
    return p.set_up + static_cast<double>(n) * p.unit + p.finish;
  }
  bool fits(const resource_profile& p, std::int64_t first, std::int64_t n, double bytes) const noexcept {
    return p.peak_mean(first, n) <= bytes;
  }
};

/// The most units from `first` on, at most `remaining`, that are safe in `seconds` and `bytes`. Memory that does not fit
/// shortens the piece to the border of a phase. By bisection.
template <class Safety>
std::int64_t longest_safe_piece(const Safety& safety, const resource_profile& p, std::int64_t first,
                                std::int64_t remaining, double seconds, double bytes) {
  std::int64_t most = remaining;
  if (!p.phases.empty() && !safety.fits(p, first, most, bytes)) {
    most = 0;
    for (const phase& f : p.phases) {
      if (f.to <= first) continue;
      const std::int64_t to_border = (std::min)(f.to - first, remaining);
      if (!safety.fits(p, first, to_border, bytes)) break;
      most = to_border;
    }
  }
  std::int64_t low = 0, high = most;  // `low` units are safe or none are
  while (low < high) {
    const std::int64_t middle = high - (high - low) / 2;
    // A sum of decimal fractions may end a rounding error behind a window that it fills exactly.
    if (safety.seconds(p, middle) <= seconds * (1 + 1e-12))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace heddle::inline v0::plan::sja

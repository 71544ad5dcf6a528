// heddle/plan/atomization/calibration.hpp: corrects a job's profile by what its pieces really took, and says how far to trust it.
#pragma once

#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace heddle::inline v0::plan::sja {

/// What a finished piece tells. Units: seconds, bytes.
struct usage {
  int window = -1;
  int job = -1;
  std::int64_t units = 0;  ///< done and saved; an overrunning piece stops at its last internal checkpoint
  double seconds = 0;      ///< of these units, without set-up and finish
  double bytes = 0;        ///< most memory
  bool overran = false;    ///< it did fewer units than granted
};

/// Running mean of observed / declared, and its standard error.
class observed_ratio {
 public:
  void add(double ratio) noexcept {
    ++n_;
    const double off = ratio - mean_;
    mean_ += off / static_cast<double>(n_);
    squares_ += off * (ratio - mean_);
  }
  std::int64_t count() const noexcept { return n_; }
  double mean() const noexcept { return n_ > 0 ? mean_ : 1; }
  double error() const noexcept {
    const auto n = static_cast<double>(n_);
    return n_ > 1 ? std::sqrt(squares_ / (n - 1) / n) : 0;
  }
  /// The ratio that the true one does not exceed, most likely: what is unknown counts against the job.
  double cautious() const noexcept { return mean() + 2 * error(); }

 private:
  std::int64_t n_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

/// Learns from reports how a profile is off. Times and memory are multiplied by observed / declared plus two standard
/// errors; `trust` follows the relative error of what was forecast with that, from 1 down to `least`.
class calibration {
 public:
  static constexpr double least = 0.1;
  static constexpr double rate = 0.2;

  /// Piece [first, first + u.units) of a job with this declared profile was observed. Nothing done tells nothing.
  void observe(const resource_profile& declared, std::int64_t first, const usage& u) {
    if (u.units <= 0) return;
    const double forecast = static_cast<double>(u.units) * declared.unit;
    const double miss = std::fabs(forecast * seconds_.mean() - u.seconds) / forecast;
    trust_ = std::clamp(trust_ + rate * ((1 - miss) - trust_), least, 1.0);
    seconds_.add(u.seconds / forecast);
    if (const double bytes = declared.peak_mean(first, u.units); bytes > 0) bytes_.add(u.bytes / bytes);
  }
  double trust() const noexcept { return trust_; }
  std::int64_t reports() const noexcept { return seconds_.count(); }

  resource_profile corrected(resource_profile declared) const {
    declared.unit *= seconds_.cautious();
    declared.unit_sd *= seconds_.cautious();
    for (phase& p : declared.phases) {
      p.bytes *= bytes_.cautious();
      p.bytes_sd *= bytes_.cautious();
    }
    return declared;
  }

 private:
  observed_ratio seconds_;
  observed_ratio bytes_;
  double trust_ = 1;
};

}  // namespace heddle::inline v0::plan::sja

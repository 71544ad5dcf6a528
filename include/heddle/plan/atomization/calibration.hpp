// heddle/plan/atomization/calibration.hpp: corrects profiles by measured durations.
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
  double set_up = -1;      ///< negative: not told
  double finish = -1;      ///< negative: not told
};

/// Running mean of what was observed, such as observed / declared, and its standard error.
class observed_mean {
 public:
  void add(double value) noexcept {
    ++n_;
    const double off = value - mean_;
    mean_ += off / static_cast<double>(n_);
    squares_ += off * (value - mean_);
  }
  std::int64_t count() const noexcept { return n_; }
  double mean() const noexcept { return n_ > 0 ? mean_ : 1; }
  double error() const noexcept {
    const auto n = static_cast<double>(n_);
    return n_ > 1 ? std::sqrt(squares_ / (n - 1) / n) : 0;
  }
  /// The value that the true one does not exceed, most likely: what is unknown counts against the job.
  double cautious() const noexcept { return mean() + 2 * error(); }

 private:
  std::int64_t n_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

/// Learns from reports how a profile is off. Times and memory are multiplied by observed / declared plus two standard
/// errors; set-up and finish become what was observed, if that is told. `trust` follows the relative error of what was
/// forecast with that, of time or of memory, whichever is larger, from 1 down to `least`. A piece that overran is charged
/// twice its error, and all of it if it brought nothing.
class calibration {
 public:
  static constexpr double least = 0.1;
  static constexpr double rate = 0.2;

  /// Piece [first, first + u.units) of a job with this declared profile was observed.
  void observe(const resource_profile& declared, std::int64_t first, const usage& u) {
    if (u.set_up >= 0) set_up_.add(u.set_up);
    if (u.finish >= 0) finish_.add(u.finish);
    if (u.units <= 0) {
      if (u.overran) charge(1);
      return;
    }
    const double forecast = static_cast<double>(u.units) * declared.unit;
    const double took = u.seconds / forecast;
    double miss = std::fabs(seconds_.mean() - took);
    seconds_.add(took);
    if (const double bytes = declared.peak_mean(first, u.units); bytes > 0) {
      const double held = u.bytes / bytes;
      miss = (std::max)(miss, std::fabs(bytes_.mean() - held));
      bytes_.add(held);
    }
    charge(u.overran ? 2 * miss : miss);
  }
  double trust() const noexcept { return trust_; }
  std::int64_t reports() const noexcept { return seconds_.count(); }

  resource_profile corrected(resource_profile declared) const {
    declared.unit *= seconds_.cautious();
    declared.unit_sd *= seconds_.cautious();
    if (set_up_.count() > 0) declared.set_up = set_up_.cautious();
    if (finish_.count() > 0) declared.finish = finish_.cautious();
    for (phase& p : declared.phases) {
      p.bytes *= bytes_.cautious();
      p.bytes_sd *= bytes_.cautious();
    }
    return declared;
  }

 private:
  void charge(double miss) noexcept { trust_ = std::clamp(trust_ + rate * ((1 - miss) - trust_), least, 1.0); }

  observed_mean seconds_;
  observed_mean bytes_;
  observed_mean set_up_;
  observed_mean finish_;
  double trust_ = 1;
};

}  // namespace heddle::inline v0::plan::sja

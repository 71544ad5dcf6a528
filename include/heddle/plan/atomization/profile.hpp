// heddle/plan/atomization/profile.hpp: needs of a divisible job over its progress.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// Free time on one slice, or on several at once (a gang: all of them or none), announced to jobs.
/// `end` may be infinite: free until further notice. Units: seconds; bytes of each slice.
struct window {
  int id = -1;              ///< given by the broker that announces it
  std::vector<int> slices;  ///< all are free in [start, end)
  double start = 0;
  double end = 0;
  double bytes = 0;      ///< memory of the smallest of them
  double announced = 0;  ///< when; a piece may be asked for ahead of its time

  double length() const noexcept { return end - start; }
  int width() const noexcept { return static_cast<int>(slices.size()); }
};

/// Units of work [from, to) in which memory is distributed alike (warm-up, steady, a burst). Units: bytes.
struct phase {
  std::int64_t from = 0;
  std::int64_t to = 0;
  double bytes = 0;  ///< mean
  double bytes_sd = 0;
};

/// A temporal resource profile: what a piece of a job takes. A unit is where the job can be cut: a training step, a
/// request, a rollout batch. Units: seconds, bytes.
struct resource_profile {
  double set_up = 0;  ///< before the first unit of a piece: load the state
  double finish = 0;  ///< behind its last: save the state
  double unit = 1;    ///< mean of a unit
  double unit_sd = 0;
  double unit_correlation = 0;  ///< of the times of any two units: 0: independent, 1: all units are late by the same
  std::vector<phase> phases{};  ///< in order, without gaps; empty: no memory

  /// Useful part of the time of a piece of n units.
  double efficiency(std::int64_t n) const noexcept {
    const double useful = static_cast<double>(n) * unit;
    return useful > 0 ? useful / (set_up + useful + finish) : 0;
  }
  /// Mean memory of the fullest phase that units [first, first + n) cross.
  double peak_mean(std::int64_t first, std::int64_t n) const noexcept {
    double most = 0;
    for (const phase& p : phases)
      if (p.from < first + n && p.to > first && p.bytes > most) most = p.bytes;
    return most;
  }
  /// Errors: `config_error` naming what is not a profile of `units` units.
  void validate(std::int64_t units) const {
    const auto refuse = [](const std::string& what) { throw config_error("heddle: resource_profile: " + what); };
    if (!(unit > 0) || !std::isfinite(unit)) refuse("a unit must take time, got " + number_text(unit) + " s");
    if (!(set_up >= 0) || !(finish >= 0) || !(unit_sd >= 0)) refuse("times and deviations must not be negative");
    if (!std::isfinite(set_up + finish + unit_sd)) refuse("times and deviations must be finite");
    if (!(unit_correlation >= 0 && unit_correlation <= 1)) refuse("unit_correlation must be in [0, 1]");
    std::int64_t next = 0;
    for (const phase& p : phases) {
      if (p.from != next || p.to <= p.from)
        refuse("phases must follow each other from unit 0; one begins at " + std::to_string(p.from) + ", not at " +
               std::to_string(next));
      if (!(p.bytes >= 0) || !(p.bytes_sd >= 0)) refuse("memory and its deviation must not be negative");
      next = p.to;
    }
    if (!phases.empty() && next < units)
      refuse("the phases end at unit " + std::to_string(next) + " of " + std::to_string(units));
  }
};

}  // namespace heddle::inline v0::plan::sja

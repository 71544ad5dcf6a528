// heddle/plan/checkpoint_interval.hpp: how often a run that fails now and then should be saved.
#pragma once

#include <heddle/core/error.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::plan {

/// The time between two saves for which the least is lost, when a save holds the run `cost` and failures come `mtbf`
/// apart on the mean, at random. Units: any one of time, without the save itself. Source: Daly, "A higher order
/// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006),
/// equation 37; its first term is Young's.
/// Errors: `config_error` for times that are not positive.
inline double daly_interval(double cost, double mtbf) {
  if (!(cost > 0) || !(mtbf > 0))
    throw config_error(
        "heddle: an interval between saves needs a save that costs time and a mean time between failures, "
        "both above 0; got " +
        std::to_string(cost) + " and " + std::to_string(mtbf));
  if (cost >= 2 * mtbf) return mtbf;
  const double x = cost / (2 * mtbf);
  return std::sqrt(2 * cost * mtbf) * (1 + std::sqrt(x) / 3 + x / 9) - cost;
}

/// The part of the time that does not advance the run, with a save after every `interval` of work, where a failure
/// costs `restart` and the work since the last save. Source: the same, equation 20 (failures during saves and restarts,
/// too).
inline double wasted_part(double interval, double cost, double mtbf, double restart) {
  return 1 - interval / (mtbf * std::exp(restart / mtbf) * std::expm1((interval + cost) / mtbf));
}

}  // namespace heddle::inline v0::plan

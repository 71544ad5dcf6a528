// heddle/plan/gain_map.hpp: the gain of switching circuits, by delay and size, as a picture.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/plan/reconfigure.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// Times with and without switching, for each delay and size. Units: seconds, bytes.
struct gain_map {
  std::vector<double> delays;
  std::vector<std::int64_t> bytes;
  std::vector<double> fixed;           ///< per size: the best of the algorithms on the start, never switched
  std::vector<reconfiguration> plans;  ///< per size and delay, the delay faster: the best plan of all algorithms
  std::vector<int> algorithms;         ///< of which algorithm the plan is

  constexpr std::size_t at(std::size_t size, std::size_t delay) const noexcept { return size * delays.size() + delay; }
  /// How many times faster the plan is than the best without switching; at least 1. Infinity where nothing runs without
  /// switching; 1 where nothing runs at all, or takes no time.
  constexpr double gain(std::size_t size, std::size_t delay) const noexcept {
    const reconfiguration& plan = plans[at(size, delay)];
    return plan.possible() && plan.seconds > 0 ? fixed[size] / plan.seconds : 1;
  }
};

/// Numbers from `low` to `high`, `per_decade` for each power of ten: evenly spaced on a logarithmic scale.
/// Errors: `config_error` unless 0 < low <= high, and there is at least one for each.
HEDDLE_INLINE std::vector<double> logarithmic(double low, double high, int per_decade);

/// Plans for all delays and sizes, each the best of several algorithms for one collective; what they are compared with
/// is the best of the same algorithms on the first topology, so that no algorithm wins by being left on links it does
/// not suit. Units: seconds; bytes of a vector of bytes. Errors: as `fabric_states`; `config_error` without algorithms.
HEDDLE_INLINE gain_map gains_of_switching(std::span<const round_view> algorithms, const topology& start,
                                          const circuit_switch& fabric, std::vector<double> delays,
                                          std::vector<std::int64_t> bytes);

namespace detail {
// "10 us", "1 MB": for powers of ten.
HEDDLE_INLINE std::string amount(double value, const std::array<const char*, 3>& units);
inline bool power_of_ten(double value) {
  const double exponent = std::log10(value);
  return std::fabs(exponent - std::round(exponent)) < 1e-3;
}
}  // namespace detail

/// The map as a picture: delays to the right, sizes upwards, darker where switching gains more.
HEDDLE_INLINE std::string gain_map_svg(const gain_map& map, const std::string& title);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/gain_map.hpp>
#endif

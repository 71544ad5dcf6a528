// heddle/plan/impl/gain_map.hpp: bodies of heddle/plan/gain_map.hpp.
#pragma once

#include <heddle/plan/gain_map.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
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

HEDDLE_INLINE std::vector<double> logarithmic(double low, double high, int per_decade) {
  if (!(low > 0 && low <= high) || !std::isfinite(high) || per_decade < 1)
    throw config_error("heddle: a logarithmic scale goes up from a number above 0, with at least one step per decade");
  std::vector<double> result;
  const auto last = std::lround(std::log10(high / low) * per_decade);
  for (long i = 0; i <= last; ++i) result.push_back(low * std::pow(10.0, static_cast<double>(i) / per_decade));
  return result;
}

HEDDLE_INLINE gain_map gains_of_switching(std::span<const round_view> algorithms, const topology& start,
                                          const circuit_switch& fabric, std::vector<double> delays,
                                          std::vector<std::int64_t> bytes) {
  if (algorithms.empty()) throw config_error("heddle: gains_of_switching needs at least one algorithm");
  gain_map map;
  map.fixed.assign(bytes.size(), std::numeric_limits<double>::infinity());
  map.plans.resize(bytes.size() * delays.size());
  map.algorithms.assign(map.plans.size(), -1);
  for (std::size_t a = 0; a < algorithms.size(); ++a) {
    const fabric_states states(algorithms[a], start, fabric);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const state_costs costs(states, bytes[i], 1);
      map.fixed[i] = (std::min)(map.fixed[i], static_seconds(costs));
      for (std::size_t k = 0; k < delays.size(); ++k) {
        reconfiguration made = reconfigure(costs, delays[k]);
        const std::size_t at = i * delays.size() + k;
        if (map.algorithms[at] >= 0 && map.plans[at].seconds <= made.seconds) continue;
        map.plans[at] = std::move(made);
        map.algorithms[at] = static_cast<int>(a);
      }
    }
  }
  map.delays = std::move(delays);
  map.bytes = std::move(bytes);
  return map;
}

}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE std::string amount(double value, const std::array<const char*, 3>& units) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) value /= 1000, ++unit;
  return text_of({svg_number(value), ' ', units[unit]});
}

}  // namespace detail
}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {

HEDDLE_INLINE std::string gain_map_svg(const gain_map& map, const std::string& title) {
  constexpr std::array<double, 5> limits{1.01, 1.5, 2, 3, std::numeric_limits<double>::infinity()};
  constexpr std::array<const char*, 5> colours{"#e9edf1", "#c6dbef", "#8cbfdd", "#3a8fd0", "#0b3c6f"};
  constexpr std::array<const char*, 5> meanings{"no gain", "up to 1.5 times faster", "1.5 to 2", "2 to 3",
                                                "3 and more"};
  constexpr std::array<const char*, 3> seconds{"\u00b5s", "ms", "s"}, sizes{"kB", "MB", "GB"};
  constexpr double cell = 18, left = 96, top = 68;
  const double bottom = top + cell * static_cast<double>(map.bytes.size());
  svg_drawing out;
  out.words(24, 34, title, 15, "#111111", "start", true);
  out.words(24, top - 9, "size of the vector", 12, "#333333");
  for (std::size_t i = 0; i < map.bytes.size(); ++i) {
    const double y = bottom - cell * static_cast<double>(i + 1);
    if (detail::power_of_ten(static_cast<double>(map.bytes[i])))
      out.words(left - 8, y + cell * 0.7, detail::amount(static_cast<double>(map.bytes[i]) / 1e3, sizes), 12, "#333333",
                "end");
    for (std::size_t k = 0; k < map.delays.size(); ++k) {
      std::size_t band = 0;
      while (band + 1 < limits.size() && map.gain(i, k) >= limits[band]) ++band;
      out.rect(left + cell * static_cast<double>(k), y, cell - 1, cell - 1, colours[band]);
    }
  }
  for (std::size_t k = 0; k < map.delays.size(); ++k)
    if (detail::power_of_ten(map.delays[k]))
      out.words(left + cell * (static_cast<double>(k) + 0.5), bottom + 16, detail::amount(map.delays[k] * 1e6, seconds),
                12, "#333333", "middle");
  const double middle = left + cell * static_cast<double>(map.delays.size()) / 2;
  out.words(middle, bottom + 36, "time to switch the circuits", 12, "#333333", "middle");
  double y = top + 4;
  const double x = left + cell * static_cast<double>(map.delays.size()) + 20;
  out.words(x, y + 8, "switching circuits is", 12, "#333333");
  for (std::size_t b = 0; b < colours.size(); ++b) {
    y += 22;
    out.rect(x, y - 4, 16, 16, colours[b], 2);
    out.words(x + 24, y + 8, meanings[b], 12, "#333333");
  }
  return out.text("", 20, "#ffffff");
}

}  // namespace heddle::inline v0::plan

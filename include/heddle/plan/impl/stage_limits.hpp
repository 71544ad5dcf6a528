// heddle/plan/impl/stage_limits.hpp: bodies of heddle/plan/stage_limits.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/impl/layer_partition.hpp>
#include <heddle/plan/stage_limits.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE void require_stage_limits(const stage_limits& limits, std::size_t layers) {
  const std::size_t stages = (std::max)(limits.speeds.size(), limits.budgets.size());
  const auto fits = [&](std::size_t n) { return n == 0 || n == stages; };
  if (!fits(limits.speeds.size()) || !fits(limits.budgets.size()) ||
      (limits.bytes.size() != 1 && !fits(limits.bytes.size())))
    throw config_error("heddle: speeds, bytes and budgets are one for each of the " + std::to_string(stages) +
                       " stages; got " + std::to_string(limits.speeds.size()) + ", " +
                       std::to_string(limits.bytes.size()) + " and " + std::to_string(limits.budgets.size()));
  for (const double v : limits.speeds)
    if (!(v > 0) || !(v < std::numeric_limits<double>::infinity()))
      throw config_error("heddle: speeds of stages are finite and greater than zero");
  for (const double b : limits.budgets)
    if (!(b >= 0)) throw config_error("heddle: stages may hold 0 or more bytes");
  for (const layer_costs& b : limits.bytes) {
    require_layer_costs(b, 1, 0);
    if (b.layers.size() != layers)
      throw config_error("heddle: bytes of " + std::to_string(b.layers.size()) + " layers for the " +
                         std::to_string(layers) + " of the costs");
  }
}

}  // namespace detail

HEDDLE_INLINE layer_partition partition_layers(const layer_costs& costs, const stage_limits& limits, int least) {
  const int stages = static_cast<int>((std::max)(limits.speeds.size(), limits.budgets.size()));
  detail::require_layer_costs(costs, stages, least);
  detail::require_stage_limits(limits, costs.layers.size());
  const detail::sums_of_layers seconds(costs, stages);
  std::vector<detail::sums_of_layers> bytes;
  for (const layer_costs& b : limits.bytes) bytes.emplace_back(b, stages);
  return partition_layers(
      static_cast<int>(std::ssize(costs.layers)), stages,
      [&](int s, int begin, int end) {
        const auto at = static_cast<std::size_t>(s);
        if (!limits.budgets.empty() && !bytes.empty() &&
            bytes[bytes.size() == 1 ? 0 : at](s, begin, end) > limits.budgets[at])
          return std::numeric_limits<double>::infinity();
        return seconds(s, begin, end) / (limits.speeds.empty() ? 1.0 : limits.speeds[at]);
      },
      least);
}

}  // namespace heddle::inline v0::plan

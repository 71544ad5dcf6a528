// heddle/plan/impl/layer_partition.hpp: bodies of heddle/plan/layer_partition.hpp.
#pragma once

#include <heddle/plan/layer_partition.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE void require_layer_costs(const layer_costs& costs, int stages, int least) {
  if (stages < 1)
    throw config_error("heddle: layers are distributed over at least one stage, not " + std::to_string(stages));
  if (least < 0 || static_cast<std::size_t>(least) * static_cast<std::size_t>(stages) > costs.layers.size())
    throw config_error("heddle: " + std::to_string(stages) + " stages of at least " + std::to_string(least) +
                       " layers need more than the " + std::to_string(costs.layers.size()) + " that there are");
  const auto good = [](double c) { return c >= 0 && c < std::numeric_limits<double>::infinity(); };
  bool all = good(costs.first) && good(costs.last);
  double sum = costs.first + costs.last;
  for (const double c : costs.layers) all = all && good(c), sum += c;
  if (!all || !good(sum)) throw config_error("heddle: costs of layers, and their sum, are finite and not negative");
}

}  // namespace detail
}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {

HEDDLE_INLINE std::vector<double> stage_costs(const layer_costs& costs, std::span<const int> counts) {
  std::vector<double> of(counts.size(), 0.0);
  std::size_t next = 0;
  for (std::size_t s = 0; s < counts.size(); ++s)
    for (int i = 0; i < counts[s] && next < costs.layers.size(); ++i) of[s] += costs.layers[next++];
  std::size_t total = 0;
  for (const int n : counts) total += n < 0 ? costs.layers.size() + 1 : static_cast<std::size_t>(n);
  if (counts.empty() || total != costs.layers.size())
    throw config_error("heddle: the stages' numbers of layers do not add up to the " +
                       std::to_string(costs.layers.size()) + " of the model");
  of.front() += costs.first;
  of.back() += costs.last;
  return of;
}

HEDDLE_INLINE layer_partition partition_layers(const layer_costs& costs, int stages, int least) {
  detail::require_layer_costs(costs, stages, least);
  const std::size_t n = costs.layers.size(), all = static_cast<std::size_t>(stages);
  const std::size_t fewest = static_cast<std::size_t>(least);
  constexpr double never = std::numeric_limits<double>::infinity();

  // best[s][e]: the first s stages have the first e layers. `join` adds a stage's cost to what the stages before it have.
  std::vector<double> best;
  std::vector<std::size_t> from((all + 1) * (n + 1));
  const auto solve = [&](auto&& join) {
    best.assign((all + 1) * (n + 1), never);
    best[0] = 0;
    for (std::size_t s = 1; s <= all; ++s)
      for (std::size_t e = fewest * s; e <= n; ++e) {
        double cost = (s == 1 ? costs.first : 0.0) + (s == all ? costs.last : 0.0);
        for (std::size_t i = e - fewest; i < e; ++i) cost += costs.layers[i];
        for (std::size_t b = e - fewest + 1; b-- > 0;) {  // this stage has layers [b, e)
          const double before = best[(s - 1) * (n + 1) + b];
          if (before < never)
            if (const double with = join(before, cost); with < best[s * (n + 1) + e]) {
              best[s * (n + 1) + e] = with;
              from[s * (n + 1) + e] = b;
            }
          if (b > 0) cost += costs.layers[b - 1];
        }
      }
    return best[all * (n + 1) + n];
  };

  const double bottleneck = solve([](double before, double cost) { return (std::max)(before, cost); });
  const double limit = bottleneck * (1 + 1e-12), unit = bottleneck > 0 ? bottleneck : 1;  // squares fit any unit
  solve([&](double before, double cost) { return cost <= limit ? before + cost / unit * (cost / unit) : never; });

  layer_partition p;
  p.counts.assign(all, 0);
  std::size_t end = n;
  for (std::size_t s = all; s > 0; --s) {
    const std::size_t begin = from[s * (n + 1) + end];
    p.counts[s - 1] = static_cast<int>(end - begin);
    end = begin;
  }
  double sum = 0;
  for (const double c : stage_costs(costs, p.counts)) {
    p.bottleneck = (std::max)(p.bottleneck, c);
    sum += c;
  }
  p.balance = p.bottleneck > 0 ? sum / static_cast<double>(stages) / p.bottleneck : 1;
  return p;
}

}  // namespace heddle::inline v0::plan

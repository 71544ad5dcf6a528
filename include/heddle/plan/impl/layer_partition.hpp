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

HEDDLE_INLINE void require_stages(int layers, int stages, int least) {
  if (stages < 1)
    throw config_error("heddle: layers are distributed over at least one stage, not " + std::to_string(stages));
  if (layers < 0 || least < 0 || static_cast<long long>(least) * stages > layers)
    throw config_error("heddle: " + std::to_string(stages) + " stages of at least " + std::to_string(least) +
                       " layers need more than the " + std::to_string(layers) + " that there are");
}

HEDDLE_INLINE void require_layer_costs(const layer_costs& costs, int stages, int least) {
  require_stages(static_cast<int>(std::ssize(costs.layers)), stages, least);
  const auto good = [](double c) { return c >= 0 && c < std::numeric_limits<double>::infinity(); };
  bool all = good(costs.first) && good(costs.last);
  double sum = costs.first + costs.last;
  for (const double c : costs.layers) all = all && good(c), sum += c;
  if (!all || !good(sum)) throw config_error("heddle: costs of layers, and their sum, are finite and not negative");
}

// The sum of layers [begin, end) and of the ends that stage s has besides.
class sums_of_layers {
 public:
  sums_of_layers(const layer_costs& costs, int stages)
      : n_(costs.layers.size()),
        sums_((n_ + 1) * (n_ + 1), 0.0),
        first_(costs.first),
        last_(costs.last),
        stages_(stages) {
    for (std::size_t b = 0; b < n_; ++b)
      for (std::size_t e = b; e < n_; ++e) sums_[b * (n_ + 1) + e + 1] = sums_[b * (n_ + 1) + e] + costs.layers[e];
  }
  double operator()(int s, int begin, int end) const {
    return sums_[static_cast<std::size_t>(begin) * (n_ + 1) + static_cast<std::size_t>(end)] + (s == 0 ? first_ : 0.0) +
           (s == stages_ - 1 ? last_ : 0.0);
  }

 private:
  std::size_t n_;
  std::vector<double> sums_;
  double first_, last_;
  int stages_;
};

HEDDLE_INLINE layer_partition partition_by(int layers, int stages, int least, const void* of,
                                           double (*cost)(const void* of, int s, int begin, int end)) {
  require_stages(layers, stages, least);
  const std::size_t n = static_cast<std::size_t>(layers), all = static_cast<std::size_t>(stages);
  const std::size_t fewest = static_cast<std::size_t>(least);
  constexpr double never = std::numeric_limits<double>::infinity();
  const auto cost_of = [&](std::size_t s, std::size_t b, std::size_t e) {
    return cost(of, static_cast<int>(s), static_cast<int>(b), static_cast<int>(e));
  };

  // best[s][e]: the first s stages have the first e layers. `join` adds a stage's cost to what those before it have.
  std::vector<double> best;
  std::vector<std::size_t> from((all + 1) * (n + 1));
  const auto solve = [&](auto&& join) {
    best.assign((all + 1) * (n + 1), never);
    best[0] = 0;
    for (std::size_t s = 1; s <= all; ++s)
      for (std::size_t e = fewest * s; e <= n; ++e) {
        if (s == all && e < n) continue;                  // the last stage ends with the last layer
        for (std::size_t b = e - fewest + 1; b-- > 0;) {  // this stage has layers [b, e)
          const double before = best[(s - 1) * (n + 1) + b];
          if (before < never)
            if (const double with = join(before, cost_of(s - 1, b, e)); with < best[s * (n + 1) + e]) {
              best[s * (n + 1) + e] = with;
              from[s * (n + 1) + e] = b;
            }
        }
      }
    return best[all * (n + 1) + n];
  };

  layer_partition p;
  p.bottleneck = solve([](double before, double with) { return (std::max)(before, with); });
  if (!(p.bottleneck < never)) return p;
  const double limit = p.bottleneck * (1 + 1e-12), unit = p.bottleneck > 0 ? p.bottleneck : 1;  // squares fit any unit
  solve([&](double before, double with) { return with <= limit ? before + with / unit * (with / unit) : never; });

  p.counts.assign(all, 0);
  p.bottleneck = 0;
  double sum = 0;
  std::size_t end = n;
  for (std::size_t s = all; s > 0; --s) {
    const std::size_t begin = from[s * (n + 1) + end];
    p.counts[s - 1] = static_cast<int>(end - begin);
    const double own = cost_of(s - 1, begin, end);
    p.bottleneck = (std::max)(p.bottleneck, own);
    sum += own;
    end = begin;
  }
  p.balance = p.bottleneck > 0 ? sum / static_cast<double>(stages) / p.bottleneck : 1;
  return p;
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
  const detail::sums_of_layers of(costs, stages);
  return partition_layers(static_cast<int>(std::ssize(costs.layers)), stages, of, least);
}

}  // namespace heddle::inline v0::plan

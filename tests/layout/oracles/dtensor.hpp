// tests/layout/oracles/dtensor.hpp: how DTensor redistributes on two mesh axes, written from its published rules.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <vector>

/// Everything is in units of T, the bytes of the whole tensor; sizes are even. Costs are totals over all ranks.
/// Source: pytorch/pytorch, torch/distributed/tensor/_redistribute.py and _collective_utils.py (described in
/// arXiv:2410.06511).
namespace dtensor {

inline constexpr double infinite = std::numeric_limits<double>::infinity();
inline constexpr int replicate = -1, partial = -2;  // other values: the dimension of a shard

using placements = std::array<int, 2>;
using extents = std::array<int, 2>;

constexpr double local_share(const placements& p, const extents& mesh) {
  double share = 1;
  for (std::size_t a = 0; a < 2; ++a)
    if (p[a] >= 0) share /= mesh[a];
  return share;
}

/// Bytes that changing axis `a` sends, from a tensor of which each rank holds `share`; infinite if there is no such step.
constexpr double step_cost(int from, int to, int p, double share, int world) {
  if (from == to) return 0;
  if (from >= 0 && to == replicate) return world * share * (p - 1);                // all-gather
  if (from >= 0 && to >= 0) return world * share * (p - 1) / p;                    // all-to-all
  if (from == partial && to == replicate) return 2 * world * share * (p - 1) / p;  // all-reduce
  if (from == partial && to >= 0) return world * share * (p - 1) / p;              // reduce-scatter
  if (from == replicate) return 0;                                                 // slice, or keep a part of the value
  return infinite;                                                                 // split to partial
}

/// The greedy plan: from the innermost axis outwards each axis goes to its target, or to Replicate if that splits a dimension
/// which the outer axes split differently before and after; then what is left, from the outermost axis inwards.
/// Infinite where it needs split -> partial, which DTensor refuses.
inline double greedy(placements from, const placements& to, const extents& mesh) {
  const int world = mesh[0] * mesh[1];
  double sum = 0;
  const auto move = [&](std::size_t a, int target) {
    sum += step_cost(from[a], target, mesh[a], local_share(from, mesh), world);
    from[a] = target;
  };
  move(1, to[1] >= 0 && (from[0] == to[1]) != (to[0] == to[1]) ? replicate : to[1]);
  for (std::size_t a = 0; a < 2; ++a) move(a, to[a]);
  return sum;
}

/// The graph plan: the cheapest path over placements with an ordered list of axes per dimension, where only the last axis of
/// a list may leave and an axis may join only at the end.
class graph {
 public:
  /// `second_first`: both axes split one dimension, the inner mesh axis as the major one.
  struct state {
    placements at{};
    bool second_first = false;
  };

  graph(extents mesh, int dims) {
    for (int a = partial; a < dims; ++a)
      for (int b = partial; b < dims; ++b) {
        states_.push_back({{a, b}, false});
        if (a == b && a >= 0) states_.push_back({{a, b}, true});
      }
    const std::size_t n = states_.size();
    cost_.assign(n, std::vector<double>(n, infinite));
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) cost_[i][j] = i == j ? 0 : edge(states_[i], states_[j], mesh);
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
          if (cost_[i][k] + cost_[k][j] < cost_[i][j]) cost_[i][j] = cost_[i][k] + cost_[k][j];
  }

  double cost(const placements& from, const placements& to) const { return cost_[find(from)][find(to)]; }

 private:
  static double edge(const state& from, const state& to, const extents& mesh) {
    std::size_t a = 0;
    if (from.at[0] == to.at[0]) a = 1;
    if (from.at[1 - a] != to.at[1 - a] || from.at[a] == to.at[a]) return infinite;
    const auto both = [](const state& s) { return s.at[0] == s.at[1] && s.at[0] >= 0; };
    if (both(from) && from.second_first != (a == 0)) return infinite;  // only the minor axis may leave
    if (both(to) && to.second_first != (a == 0)) return infinite;      // it joins as the minor axis
    return step_cost(from.at[a], to.at[a], mesh[a], local_share(from.at, mesh), mesh[0] * mesh[1]);
  }
  std::size_t find(const placements& p) const {
    std::size_t i = 0;
    while (states_[i].at != p || states_[i].second_first) ++i;
    return i;
  }

  std::vector<state> states_;
  std::vector<std::vector<double>> cost_;
};

}  // namespace dtensor

// tests/layout/oracles/oneflow.hpp: how OneFlow redistributes, written from its published rules and not from heddle's planner.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

/// Everything is in units of T, the bytes of the whole tensor; sizes are even. Costs are totals over all devices.
/// Source: Yuan et al. 2021, arXiv:2110.15032, table 2 and section 3; Oneflow-Inc/oneflow, sbp_infer_util.cpp and
/// boxing_collector.cpp for nd-SBP. B -> S is counted as what it sends, nothing; the reference counts 1 to break ties.
namespace oneflow {

inline constexpr double infinite = std::numeric_limits<double>::infinity();

/// What one hierarchy axis does: 'S' with the dimension, 'B' (broadcast) or 'P' (partial sum).
struct sbp {
  char kind = 'B';
  int dim = -1;
  friend constexpr bool operator==(const sbp& a, const sbp& b) { return a.kind == b.kind && a.dim == b.dim; }
};
constexpr sbp S(int dim) {
  return {'S', dim};
}
inline constexpr sbp B{'B', -1}, P{'P', -1};

using nd_sbp = std::array<sbp, 2>;
using hierarchy = std::array<int, 2>;

inline std::string text(const sbp& s) {
  return s.kind == 'S' ? "S" + std::to_string(s.dim) : std::string(1, s.kind);
}
inline std::string text(const nd_sbp& s) {
  return "(" + text(s[0]) + "," + text(s[1]) + ")";
}

/// The transfer table, both ends on the same p devices.
constexpr double same_devices(sbp from, sbp to, int p) {
  if (from == to) return 0;
  if (from.kind == 'S' && to.kind == 'S') return (p - 1.0) / p;
  if (from.kind == 'S' && to.kind == 'B') return p - 1.0;
  if (from.kind == 'P' && to.kind == 'S') return p - 1.0;
  if (from.kind == 'P' && to.kind == 'B') return 2 * (p - 1.0);
  return 0;  // S -> P, B -> S, B -> P
}
/// The transfer table, from p1 devices to p2 others.
constexpr double disjoint_devices(sbp from, sbp to, int p1, int p2) {
  return 1 + (to.kind == 'B' ? p2 - 1.0 : 0) + (from.kind == 'P' ? p1 - 1.0 : 0);
}

/// The 64 nd-SBPs of a two-dimensional hierarchy and up to six tensor dimensions.
inline std::vector<nd_sbp> universe() {
  const std::array<sbp, 8> one{B, S(0), S(1), S(2), S(3), S(4), S(5), P};
  std::vector<nd_sbp> all;
  for (const sbp& a : one)
    for (const sbp& b : one) all.push_back({a, b});
  return all;
}

/// Whether one boxing does it, and what it sends: equal axes merge; one axis that differs runs in its groups, each of
/// which moves a full copy along an axis of B or P. The outer axis alone cannot enter or leave (Si,Si): pieces interleave.
inline double direct(const nd_sbp& from, const nd_sbp& to, const hierarchy& h) {
  if (from == to) return 0;
  if (from[0] == from[1] && to[0] == to[1]) return same_devices(from[0], to[0], h[0] * h[1]);
  const bool outer = !(from[0] == to[0]), inner = !(from[1] == to[1]);
  if (outer && inner) return infinite;
  if (outer && ((from[0] == from[1] && from[0].kind == 'S') || (to[0] == to[1] && to[0].kind == 'S'))) return infinite;
  const std::size_t a = outer ? 0 : 1;
  const double copies = from[1 - a].kind == 'S' ? 1 : h[1 - a];
  return copies * same_devices(from[a], to[a], h[a]);
}

/// Share of the tensor that one device stores.
inline double storage(const nd_sbp& s, const hierarchy& h) {
  double share = 1;
  for (std::size_t a = 0; a < 2; ++a)
    if (s[a].kind == 'S') share /= h[a];
  return share;
}

struct route {
  double cost = infinite;
  double stored = 0;  ///< by the middle tensors, per device
  std::vector<int> middle{};
};

/// All pairs: for 1, 2 and 3 middle nodes, the cheapest way for the pairs not reached with fewer; ties by storage.
class planner {
 public:
  explicit planner(hierarchy h)
      : states_(universe()), h_(h), routes_(states_.size(), std::vector<route>(states_.size())) {
    for (std::size_t i = 0; i < states_.size(); ++i)
      for (std::size_t j = 0; j < states_.size(); ++j) routes_[i][j].cost = direct(states_[i], states_[j], h);
    const auto first = routes_;
    for (int middle = 1; middle <= 3; ++middle) {
      const auto before = routes_;
      for (std::size_t i = 0; i < states_.size(); ++i)
        for (std::size_t j = 0; j < states_.size(); ++j) {
          if (before[i][j].cost < infinite) continue;
          for (std::size_t m = 0; m < states_.size(); ++m) {
            const double cost = before[i][m].cost + first[m][j].cost;
            if (!(cost < infinite)) continue;
            const double stored = before[i][m].stored + storage(states_[m], h);
            route& best = routes_[i][j];
            if (cost > best.cost + 1e-9 || (std::abs(cost - best.cost) <= 1e-9 && stored >= best.stored)) continue;
            best = {cost, stored, before[i][m].middle};
            best.middle.push_back(static_cast<int>(m));
          }
        }
    }
  }

  const std::vector<nd_sbp>& states() const { return states_; }
  const route& between(std::size_t from, std::size_t to) const { return routes_[from][to]; }
  /// What its steps send, added up again along the middle nodes.
  double cost_of(std::size_t from, std::size_t to) const {
    double sum = 0;
    nd_sbp at = states_[from];
    for (const int m : routes_[from][to].middle) {
      sum += direct(at, states_[static_cast<std::size_t>(m)], h_);
      at = states_[static_cast<std::size_t>(m)];
    }
    return sum + direct(at, states_[to], h_);
  }

 private:
  std::vector<nd_sbp> states_;
  hierarchy h_;
  std::vector<std::vector<route>> routes_;
};

}  // namespace oneflow

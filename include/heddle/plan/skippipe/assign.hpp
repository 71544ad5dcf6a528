// heddle/plan/skippipe/assign.hpp: assigns stages to nodes by a genetic search.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/schedule/paths.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// What an assignment of nodes to stages costs. Units: seconds.
struct assignment_cost {
  double inside = 0;         ///< the slowest link between two replicas of one stage: what their all-reduce waits for
  double tour = 0;           ///< the shortest closed tour through all stages, see `cost_of_assignment`
  std::vector<int> order{};  ///< the stages along that tour, stage 0 first
  constexpr double total() const noexcept { return inside + 2 * tour; }
};

namespace detail {

/// The smallest worst edge of a matching that covers the smaller of two sets. `edge[a][b]`.
HEDDLE_INLINE double bottleneck_matching(const std::vector<std::vector<double>>& edge);

/// The shortest closed tour through all points from 0, by dynamic programming over subsets.
HEDDLE_INLINE std::pair<double, std::vector<int>> shortest_tour(const std::vector<std::vector<double>>& length);

}  // namespace detail

/// The cost of an assignment: the slowest link inside a stage, and twice the shortest closed tour through the stages, where
/// two stages are as far apart as the worst link (and forward at its end) of the best matching of their nodes. A message
/// that never comes takes infinitely long; so does the tour if there is none without such.
/// Errors: `config_error` for a stage that does not exist or has no node, more than 20 stages, costs of other nodes.
/// Source: Yuan et al. 2022, "Decentralized training of foundation models in heterogeneous environments" (DT-FM).
HEDDLE_INLINE assignment_cost cost_of_assignment(const schedule::visit_costs& costs, std::span<const int> stage_of_node,
                                                 int stages);

/// How long the genetic search goes on, and what it weighs.
struct assign_options {
  int population = 200;
  int offspring = 8000;
  int crossover_points = 5;
  double factor = 4.0 / 3.0;  ///< bytes of a stage's gradients over bytes of a node's messages in a step
  std::uint64_t seed = 5;
};

/// Which stage each node holds, and what that costs.
struct assignment {
  std::vector<int> stage_of_node{};
  assignment_cost cost{};
};

namespace detail {

// Kernighan-Lin moves in a circle: a node leaves the first stage for a second one, a node of that for a third one, ... until
// one comes to the first; the best of the circles that could have been closed on the way is.
HEDDLE_INLINE std::vector<int> moved_in_circles(const schedule::visit_costs& costs, std::vector<int> of, int stages,
                                                double factor);

}  // namespace detail

/// Assigns nodes to stages of these sizes: a genetic search over assignments with crossovers at some points, repaired to
/// the sizes, improved by moves in circles, then, from the best ten,
/// exchanges of two nodes while they help. Stage 0 keeps its size; the other
/// stages are numbered along the tour, so that sizes that differ among them may change places. Deterministic.
/// Errors: `config_error` unless the sizes are positive and sum up to the number of nodes.
/// Source: DT-FM's partitioner, as SkipPipe uses it (described, not copied).
HEDDLE_INLINE assignment assign_nodes(const schedule::visit_costs& costs, std::span<const int> sizes,
                                      const assign_options& o = {});

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/skippipe/assign.hpp>
#endif

// The plans that SkipPipe was published with, for twenty nodes in twelve cities.
#pragma once

#include <heddle/schedule/paths.hpp>

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "twelve_cities.hpp"

/// The published case: 6 stages of 4 layers on 20 nodes, boundary tensors of 8 x 1024 x 1024 floats.
/// Source: Blagoev et al. 2025, arXiv:2502.19913, and its public planner.
namespace published {

inline constexpr int stages = 6;
inline constexpr double message_bytes = 4.0 * 8 * 1024 * 1024;
inline constexpr double message_overhead = 0.35;  ///< seconds, of each message
/// Which stage each of the twenty nodes holds: [0 3 4 10 11] [15 8 14] [1 9 6] [16 12 13] [5 18 7] [17 2 19].
inline constexpr std::array<int, 20> stage_of_node{0, 2, 5, 0, 0, 4, 2, 4, 1, 2, 0, 0, 3, 3, 1, 1, 3, 5, 4, 5};
/// Those of stage 0, where microbatches begin and end.
inline constexpr std::array<int, 5> origins{0, 3, 4, 10, 11};

/// Units: `forward_seconds` that each node takes for a forward; published with 0.44 and 1.76.
constexpr heddle::schedule::visit_costs costs(double forward_seconds = 0.44) {
  heddle::schedule::visit_costs c;
  c.forward.assign(20, forward_seconds);
  c.message = twenty_node_links(false).all_seconds(message_bytes, message_overhead);
  return c;
}

/// Waves of the same ways: wave d may start `between_waves` d later, way i of it `ready[i]` later still, and waits for
/// the same way of the wave before. Units: seconds.
constexpr heddle::schedule::path_table waves(int length, std::span<const int> way, std::span<const double> ready,
                                             int count, double between_waves) {
  heddle::schedule::path_table t;
  t.stages = stages;
  t.length = length;
  t.stage_of_node.assign(stage_of_node.begin(), stage_of_node.end());
  const int each = static_cast<int>(ready.size());
  for (int d = 0; d < count; ++d) {
    t.way.insert(t.way.end(), way.begin(), way.end());
    for (int i = 0; i < each; ++i) {
      t.ready.push_back(d * between_waves + ready[static_cast<std::size_t>(i)]);
      t.after.push_back(d == 0 ? -1 : (d - 1) * each + i);
    }
  }
  return t;
}

namespace detail {
// Every way three times, the copies `apart` seconds after each other.
template <std::size_t N>
constexpr heddle::schedule::path_table thrice(const std::array<int, N>& way, int length, double apart, int count,
                                              double between_waves) {
  std::vector<int> all;
  std::vector<double> ready;
  for (std::size_t k = 0; k < N; k += static_cast<std::size_t>(length))
    for (int copy = 0; copy < 3; ++copy) {
      for (std::size_t j = 0; j < static_cast<std::size_t>(length); ++j) all.push_back(way[k + j]);
      ready.push_back(apart * copy);
    }
  return waves(length, all, ready, count, between_waves);
}
constexpr heddle::schedule::path_table three_each(const std::array<int, 60>& way, double forward_seconds) {
  std::vector<double> ready;
  for (int i = 0; i < 15; ++i) ready.push_back(i % 3 * forward_seconds);
  return waves(4, way, ready, 2, 2.5);
}
}  // namespace detail

/// No stage skipped: three chains, nine microbatches each, 27 in all.
constexpr heddle::schedule::path_table full_pipeline() {
  return detail::thrice(std::array{0, 15, 1, 16, 5, 17, 3, 8, 9, 12, 18, 2, 4, 14, 6, 13, 7, 19}, 6, 0.0, 3, 0.1);
}
/// Stages skipped without a look at what links cost (DT-FM with skips): 30 microbatches, as the next two.
constexpr heddle::schedule::path_table cost_blind(double forward_seconds = 0.44) {
  return detail::three_each(
      {0, 12, 7, 17, 0, 14, 16, 9,  0,  1, 8,  19, 3, 12, 7,  17, 3,  15, 6,  5,  3,  1, 8,  19, 4, 13, 18, 2,  4,  15,
       6, 5,  4, 1,  8, 19, 10, 13, 18, 2, 10, 15, 6, 5,  10, 14, 16, 9,  11, 13, 18, 2, 11, 12, 7, 17, 11, 14, 16, 9},
      forward_seconds);
}
/// Every stage and every node equally often (the first condition, TC1), collisions allowed.
constexpr heddle::schedule::path_table balanced(double forward_seconds = 0.44) {
  return detail::three_each(
      {0, 12, 5, 19, 0,  1, 19, 18, 0,  6, 18, 17, 3, 12, 6,  2,  3,  14, 12, 2, 3,  6, 14, 13, 4,  15, 13, 7, 4,  15,
       5, 17, 4, 15, 13, 7, 10, 1,  17, 5, 10, 1,  7, 2,  10, 14, 18, 19, 11, 8, 16, 9, 11, 8,  16, 9,  11, 8, 16, 9},
      forward_seconds);
}
/// Balanced, and planned against collisions (TC1 and TC2): each way by three microbatches, a second apart.
constexpr heddle::schedule::path_table collision_aware() {
  return detail::thrice(std::array{0, 14, 6, 12, 3, 15, 17, 5, 4, 7, 13, 19, 10, 1, 18, 2, 11, 8, 16, 9}, 4, 1.0, 2,
                        2.5);
}

}  // namespace published

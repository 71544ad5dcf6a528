// heddle/schedule/paths.hpp: paths of microbatches through a subset of the stages (SkipPipe).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::schedule {

/// The ways of the microbatches of a step through nodes, each of which holds one stage; nodes of one stage are replicas.
/// A way begins at its origin, a node of stage 0, goes on through `length - 1` nodes of other stages, and comes back to
/// the origin for the loss; then all of it backwards. So microbatch i makes 2 length + 1 visits and 2 length messages.
/// Source: Blagoev et al. 2025, arXiv:2502.19913.
struct path_table {
  int stages = 0;
  int length = 0;                    ///< nodes on a way, the origin counted once
  std::vector<int> stage_of_node{};  ///< which stage each node holds
  std::vector<int> way{};            ///< microbatch i: way[i * length ...]
  std::vector<double> ready{};       ///< when a microbatch may start; empty: all at once. Units: seconds
  std::vector<int> after{};          ///< the microbatch that has to be over before, or -1; may be empty

  constexpr int nodes() const noexcept { return static_cast<int>(stage_of_node.size()); }
  constexpr int microbatches() const noexcept { return length > 0 ? static_cast<int>(way.size()) / length : 0; }
  constexpr std::span<const int> path(int microbatch) const noexcept {
    return {way.data() + static_cast<std::size_t>(microbatch) * static_cast<std::size_t>(length),
            static_cast<std::size_t>(length)};
  }
  constexpr int origin(int microbatch) const noexcept { return path(microbatch)[0]; }
  constexpr double ready_at(int microbatch) const noexcept {
    return ready.empty() ? 0.0 : ready[static_cast<std::size_t>(microbatch)];
  }
  constexpr int waits_for(int microbatch) const noexcept {
    return after.empty() ? -1 : after[static_cast<std::size_t>(microbatch)];
  }
  /// Visits of one microbatch.
  constexpr int visits() const noexcept { return 2 * length + 1; }
  /// The node of a microbatch's k-th visit, 0 <= k < visits().
  constexpr int node_at(int microbatch, int k) const noexcept {
    const auto p = path(microbatch);
    return p[static_cast<std::size_t>(k < length ? k : k == length ? 0 : 2 * length - k)];
  }
  /// How many microbatches come to a node, forward.
  constexpr std::vector<int> visits_of_nodes() const {
    std::vector<int> n(stage_of_node.size(), 0);
    for (const int node : way) ++n[static_cast<std::size_t>(node)];
    return n;
  }
  /// How many microbatches come to each stage, forward.
  constexpr std::vector<int> visits_of_stages() const {
    std::vector<int> n(static_cast<std::size_t>(stages), 0);
    for (const int node : way) ++n[static_cast<std::size_t>(stage_of_node[static_cast<std::size_t>(node)])];
    return n;
  }
  friend constexpr bool operator==(const path_table&, const path_table&) = default;
};

/// A microbatch on a node: the k-th of its visits. Units: seconds.
struct visit {
  int node = -1, microbatch = -1, position = 0;
  double start = 0, end = 0;
  friend constexpr bool operator==(const visit&, const visit&) = default;
};
/// The order of visits in time; those of one microbatch in their order also where they take no time.
constexpr bool begins_before(const visit& a, const visit& b) noexcept {
  if (a.start != b.start) return a.start < b.start;
  if (a.end != b.end) return a.end < b.end;
  return a.microbatch != b.microbatch ? a.microbatch < b.microbatch : a.position < b.position;
}
/// Forward, the loss at the origin, backward: by the position of a visit on a way of `length` nodes.
constexpr bool is_forward(const visit& v, int length) noexcept {
  return v.position < length;
}
/// Whether a visit computes the loss.
constexpr bool is_loss(const visit& v, int length) noexcept {
  return v.position == length;
}

/// When everything happens, in the order in which it begins. Units: seconds.
struct timetable {
  std::vector<visit> visits{};
  double makespan = 0;
};

/// What visits and messages cost on a set of nodes. Units: seconds.
struct visit_costs {
  std::vector<double> forward{};  ///< of each node
  std::vector<double> message{};  ///< [from * nodes + to]: one boundary tensor, one way
  double backward_factor = 1.5;   ///< a backward takes that much of the node's forward
  double loss_factor = 0.25;      ///< and the loss at the origin that much

  constexpr int nodes() const noexcept { return static_cast<int>(forward.size()); }
  constexpr double send(int from, int to) const noexcept {
    return message[static_cast<std::size_t>(from) * forward.size() + static_cast<std::size_t>(to)];
  }
  /// Whether there is a time for each node and pair, and none is negative.
  constexpr bool complete() const noexcept {
    if (forward.empty() || message.size() != forward.size() * forward.size()) return false;
    bool fine = backward_factor >= 0 && loss_factor >= 0;
    for (const double t : forward) fine = fine && t >= 0;
    for (const double t : message) fine = fine && t >= 0;
    return fine;
  }
  /// Of the visit at this position of a way of `length` nodes.
  constexpr double work(int node, int position, int length) const noexcept {
    const double w = forward[static_cast<std::size_t>(node)];
    return position < length ? w : position == length ? loss_factor * w : backward_factor * w;
  }
};

namespace detail {
[[noreturn]] inline void refuse_path(int microbatch, const char* why) {
  throw schedule_error(text_of({"heddle: the way of microbatch ", microbatch, ' ', why}));
}
}  // namespace detail

/// Refuses what is not a table of ways: numbers that do not fit each other, nodes that are not there, a way that does not
/// begin on stage 0, comes there again or visits a stage twice, a cycle of microbatches that wait for each other.
/// Errors: `schedule_error` naming the microbatch.
constexpr void require_paths(const path_table& t) {
  if (t.length < 1 || t.stages < 1 || t.way.size() % static_cast<std::size_t>(t.length) != 0)
    throw schedule_error("heddle: the numbers of a table of ways do not fit each other: " +
                         std::to_string(t.way.size()) + " nodes on ways of " + std::to_string(t.length));
  const auto m = static_cast<std::size_t>(t.microbatches());
  if ((!t.ready.empty() && t.ready.size() != m) || (!t.after.empty() && t.after.size() != m))
    throw schedule_error("heddle: a table of ways has starting times or orders for another number of microbatches");
  for (const int s : t.stage_of_node)
    if (s < 0 || s >= t.stages)
      throw schedule_error("heddle: a node holds stage " + std::to_string(s) + ", there are " +
                           std::to_string(t.stages));
  for (int i = 0; i < t.microbatches(); ++i) {
    const auto p = t.path(i);
    for (std::size_t k = 0; k < p.size(); ++k) {
      if (p[k] < 0 || p[k] >= t.nodes()) detail::refuse_path(i, "goes to a node that does not exist");
      const int stage = t.stage_of_node[static_cast<std::size_t>(p[k])];
      if ((k == 0) != (stage == 0)) detail::refuse_path(i, "does not begin on stage 0, or comes there again");
      for (std::size_t j = 0; j < k; ++j)
        if (t.stage_of_node[static_cast<std::size_t>(p[j])] == stage)
          detail::refuse_path(i, "comes to one stage twice");
    }
    int steps = 0;
    for (int j = t.waits_for(i); j != -1; j = t.waits_for(j)) {
      if (j < 0 || j >= t.microbatches()) detail::refuse_path(i, "waits for a microbatch that does not exist");
      if (++steps > t.microbatches()) detail::refuse_path(i, "waits for itself");
    }
  }
}

/// Two visits to one node at the same time, at least one of them forward (the loss counts as forward): the pair SkipPipe's
/// second condition (TC2) forbids. Returns the first two such visits, or none.
struct collision {
  visit first, second;
  bool found = false;
};
/// The first pair of visits that collide, or none: see `collision`.
constexpr collision find_collision(const timetable& times, int length, double tolerance = 1e-9) {
  for (std::size_t a = 0; a < times.visits.size(); ++a)
    for (std::size_t b = a + 1; b < times.visits.size(); ++b) {
      const visit &x = times.visits[a], &y = times.visits[b];
      if (x.node != y.node || (x.position > length && y.position > length)) continue;
      if (x.start == x.end || y.start == y.end) continue;
      if (x.start < y.end - tolerance && y.start < x.end - tolerance) return {x, y, true};
    }
  return {};
}

}  // namespace heddle::inline v0::schedule

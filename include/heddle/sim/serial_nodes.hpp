// heddle/sim/serial_nodes.hpp: microbatches with their own paths on serial nodes.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/schedule/paths.hpp>

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// A node does one visit at a time, waiting ones in the order in which they came; a forward takes one of the node's
/// slots, which the backward of the same microbatch frees (the loss needs none). Units: seconds.
struct serial_nodes {
  int slots = 3;               ///< activations that a node can hold
  double gap = 0.13;           ///< a node rests so long after a visit,
  double injected_gap = 0.09;  ///< and so long after it has started a microbatch of its own

  /// When each visit happens. Errors: `schedule_error` if the nodes wait for each other's slots, naming one that does;
  /// for a table that `schedule::require_paths` refuses, costs of other nodes, or slots and gaps below 0.
  constexpr schedule::timetable operator()(const schedule::path_table& paths,
                                           const schedule::visit_costs& costs) const {
    schedule::timetable line;
    if (run(paths, costs, &line) < 0) throw schedule_error(stuck(paths, line));
    return line;
  }
  /// Only the time at which all is over, or infinity if the nodes wait for each other.
  constexpr double seconds(const schedule::path_table& paths, const schedule::visit_costs& costs) const {
    const double end = run(paths, costs, nullptr);
    return end < 0 ? std::numeric_limits<double>::infinity() : end;
  }

 private:
  struct waiting {
    int microbatch, position;
    double arrival;
  };

  // The end, or -1 if it never comes.
  constexpr double run(const schedule::path_table& paths, const schedule::visit_costs& costs,
                       schedule::timetable* line) const {
    schedule::require_paths(paths);
    constexpr double never = std::numeric_limits<double>::infinity();
    if (slots < 0 || !(gap >= 0 && gap < never) || !(injected_gap >= 0 && injected_gap < never))
      throw schedule_error("heddle: nodes have 0 slots or more and rest for seconds, not " + std::to_string(slots) +
                           " slots and " + number_text(gap) + " s or " + number_text(injected_gap) + " s");
    if (costs.nodes() != paths.nodes() || !costs.complete())
      throw schedule_error("heddle: the costs of visits are those of " + std::to_string(costs.nodes()) +
                           " nodes, or not complete; the ways go through " + std::to_string(paths.nodes()));
    const int m = paths.microbatches();
    const auto n = static_cast<std::size_t>(paths.nodes());
    std::vector<std::vector<waiting>> queue(n);
    auto free = std::vector<double>(n, 0.0);
    std::vector<int> left(n, slots);
    for (int i = 0; i < m; ++i)
      if (paths.waits_for(i) < 0) queue[static_cast<std::size_t>(paths.origin(i))].push_back({i, 0, paths.ready_at(i)});
    double makespan = 0;
    int over = 0;
    for (;;) {
      // The visit that can begin first, of those the one that came first, of those the first microbatch.
      std::size_t node = n, place = 0;
      double start = 0;
      for (std::size_t k = 0; k < n; ++k)
        for (std::size_t q = 0; q < queue[k].size(); ++q) {
          const waiting& w = queue[k][q];
          if (w.position < paths.length && left[k] == 0) continue;
          const double at = w.arrival > free[k] ? w.arrival : free[k];
          if (node < n) {
            const waiting& best = queue[node][place];
            if (at > start) continue;
            if (at == start &&
                (w.arrival > best.arrival || (w.arrival == best.arrival && w.microbatch > best.microbatch)))
              continue;
          }
          node = k, place = q, start = at;
        }
      if (node == n) break;
      const waiting w = queue[node][place];
      queue[node].erase(queue[node].begin() + static_cast<std::ptrdiff_t>(place));
      const int here = static_cast<int>(node);
      const double end = start + costs.work(here, w.position, paths.length);
      free[node] = end + (w.position == 0 ? injected_gap : gap);
      if (w.position < paths.length) --left[node];
      if (w.position > paths.length) ++left[node];
      if (line != nullptr) line->visits.push_back({here, w.microbatch, w.position, start, end});
      if (w.position + 1 < paths.visits()) {
        const int next = paths.node_at(w.microbatch, w.position + 1);
        const double arrival = end + (next == here ? 0 : costs.send(here, next));
        queue[static_cast<std::size_t>(next)].push_back({w.microbatch, w.position + 1, arrival});
        continue;
      }
      ++over;
      makespan = end > makespan ? end : makespan;
      for (int i = 0; i < m; ++i)
        if (paths.waits_for(i) == w.microbatch)
          queue[static_cast<std::size_t>(paths.origin(i))].push_back(
              {i, 0, end > paths.ready_at(i) ? end : paths.ready_at(i)});
    }
    if (line != nullptr) line->makespan = makespan;
    return over == m ? makespan : -1;
  }

  static constexpr std::string stuck(const schedule::path_table& paths, const schedule::timetable& line) {
    std::vector<int> done(static_cast<std::size_t>(paths.microbatches()), 0);
    for (const schedule::visit& v : line.visits) done[static_cast<std::size_t>(v.microbatch)] = v.position + 1;
    for (int i = 0; i < paths.microbatches(); ++i) {
      const int position = done[static_cast<std::size_t>(i)];
      if (position == 0 || position >= paths.length) continue;
      return "heddle: the nodes wait for each other: microbatch " + std::to_string(i) +
             " waits for ever for a slot of node " + std::to_string(paths.node_at(i, position)) +
             "; give nodes more slots or let fewer microbatches start at once";
    }
    return "heddle: the nodes wait for each other's slots for ever; give them more slots";
  }
};

}  // namespace heddle::inline v0::sim

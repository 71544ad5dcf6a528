// heddle/plan/skippipe/way.hpp: the fastest path of a microbatch around busy nodes.
#pragma once

#include <heddle/plan/skippipe/rules.hpp>
#include <heddle/schedule/paths.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// A node that a microbatch must not use in [from, to). Units: seconds.
struct busy_time {
  int copy = 0;  ///< of the agent's microbatches, which one
  int node = -1;
  double from = 0;
  double to = 0;
};

/// Microbatches that take the same way, one after the other; usually one. `origin` is a node of stage 0.
struct agent {
  int origin = -1;
  std::vector<double> ready{};  ///< when each microbatch may start. Units: seconds
};

/// What an agent has been told: where it must not go, and when.
struct way_limits {
  std::vector<char> node_allowed{};
  std::vector<char> stage_allowed{};
  std::vector<busy_time> busy{};
  std::vector<int> only_way{};                ///< the way to take, if not empty
  std::vector<std::vector<int>> not_these{};  ///< whole ways that are forbidden
};

/// An agent's way, when it visits each node, and when all its microbatches are back.
struct planned_way {
  std::vector<int> nodes{};
  std::vector<std::vector<std::pair<double, double>>> times{};  ///< [copy][position]: start, end
  double seconds = 0;
};

namespace detail {

/// Walks a way, there and back, waiting at each node until it is free for the whole visit.
inline void walk_way(const schedule::visit_costs& costs, const std::vector<busy_time>& busy, int copy, double t,
                     std::span<const int> nodes, std::vector<std::pair<double, double>>& times) {
  const int length = static_cast<int>(nodes.size());
  times.clear();
  int before = -1;
  for (int k = 0; k <= 2 * length; ++k) {
    const int node = nodes[static_cast<std::size_t>(k < length ? k : k == length ? 0 : 2 * length - k)];
    if (before >= 0 && before != node) t += costs.send(before, node);
    const double work = costs.work(node, k, length);
    for (bool moved = true; moved;) {
      moved = false;
      for (const busy_time& b : busy)
        if (b.copy == copy && b.node == node && t < b.to && b.from < t + work) t = b.to, moved = true;
    }
    times.emplace_back(t, t + work);
    t += work;
    before = node;
  }
}

inline planned_way walk_all(const schedule::visit_costs& costs, const agent& who, const std::vector<busy_time>& busy,
                            std::vector<int> nodes) {
  planned_way way{std::move(nodes), {}, 0};
  way.times.resize(who.ready.size());
  for (std::size_t c = 0; c < who.ready.size(); ++c) {
    walk_way(costs, busy, static_cast<int>(c), who.ready[c], way.nodes, way.times[c]);
    way.seconds = (std::max)(way.seconds, way.times[c].back().second);
  }
  return way;
}

/// Best-first search for the way that is over first. What is known of a partial way, the return of what it has gone and
/// the least that what is left can take, never exceeds what it will take, so the first whole way is the best. Where ways
/// are much alike there are exponentially many of that kind: behind `most_states` partial ways it takes the best of each
/// length in turn, so that whole ways are soon among them, and the best of those.
template <path_rules Rules>
class way_search {
 public:
  way_search(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int length,
             std::size_t most_states = (std::numeric_limits<std::size_t>::max)(), bool in_order = false)
      : costs_(costs), stage_of_node_(stage_of_node), length_(length), most_states_(most_states), in_order_(in_order) {
    // left_[origin][k][n]: the least that k more nodes behind n and the way back to the origin can take, stages and rules
    // left aside.
    const int nodes = costs.nodes();
    left_.resize(at(nodes));
    for (int origin = 0; origin < nodes; ++origin) {
      if (stage_of_node[at(origin)] != 0) continue;
      auto& left = left_[at(origin)];
      left.assign(at(length), std::vector<double>(at(nodes), std::numeric_limits<double>::infinity()));
      for (int n = 0; n < nodes; ++n) left[0][at(n)] = n == origin ? 0 : costs.send(n, origin) + costs.send(origin, n);
      for (int k = 1; k < length; ++k)
        for (int n = 0; n < nodes; ++n)
          for (int next = 0; next < nodes; ++next)
            if (stage_of_node[at(next)] != 0 && stage_of_node[at(next)] != stage_of_node[at(n)])
              left[at(k)][at(n)] = (std::min)(left[at(k)][at(n)], hop(n, next) + left[at(k - 1)][at(next)]);
    }
  }

  std::optional<planned_way> operator()(const agent& who, const way_limits& limits) const {
    if (!limits.node_allowed[at(who.origin)] || !limits.stage_allowed[0]) return std::nullopt;
    if (!limits.only_way.empty()) {
      for (const int n : limits.only_way)
        if (!limits.node_allowed[at(n)] || !limits.stage_allowed[at(stage_of_node_[at(n)])]) return std::nullopt;
      return walk_all(costs_, who, limits.busy, limits.only_way);
    }
    double last_ready = who.ready[0];
    for (const double r : who.ready) last_ready = (std::max)(last_ready, r);
    progress p;
    const double w = costs_.forward[at(who.origin)];
    push(p, -1, who.origin, 1, who.origin, last_ready + (1 + costs_.backward_factor + costs_.loss_factor) * w);
    while (!p.open.empty()) {
      const entry e = p.open.top();
      p.open.pop();
      if (e.whole >= 0) return std::move(p.whole[at(e.whole)]);
      go_on(p, e.state, who, limits);
      if (p.states.size() > most_states_) return by_turns(std::move(p), who, limits);
    }
    return std::nullopt;
  }

 private:
  struct state {
    int parent, node, count;
    double known;
  };
  struct entry {
    double bound;
    int state, whole;
    int lacks = 0;
    // The least bound on top; of equal ones the one found first, so that results do not depend on the queue.
    friend bool operator<(const entry& a, const entry& b) noexcept {
      return a.lacks != b.lacks               ? a.lacks > b.lacks
             : a.bound != b.bound             ? a.bound > b.bound
             : (a.whole < 0) != (b.whole < 0) ? a.whole < 0
                                              : a.state + a.whole > b.state + b.whole;
    }
  };
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  struct progress {
    std::vector<state> states{};
    std::vector<planned_way> whole{};
    std::priority_queue<entry> open{};
    std::vector<int> nodes{}, stages{};  // of the partial way that goes on
  };

  // A partial way goes on in all ways that it may, or is whole.
  void go_on(progress& p, int number, const agent& who, const way_limits& limits) const {
    const state s = p.states[at(number)];
    p.nodes.resize(at(s.count));
    p.stages.resize(at(s.count));
    for (int k = s.count - 1, i = number; k >= 0; --k, i = p.states[at(i)].parent) {
      p.nodes[at(k)] = p.states[at(i)].node;
      p.stages[at(k)] = stage_of_node_[at(p.nodes[at(k)])];
    }
    if (s.count == length_) {
      if (std::find(limits.not_these.begin(), limits.not_these.end(), p.nodes) != limits.not_these.end()) return;
      p.whole.push_back(walk_all(costs_, who, limits.busy, p.nodes));
      p.open.push({p.whole.back().seconds, -1, static_cast<int>(p.whole.size()) - 1});
      return;
    }
    path_view seen;
    for (std::size_t k = 0; k < p.stages.size(); ++k)
      seen = after_visit(seen, p.stages[k], std::span(p.stages).first(k + 1));
    for (int next = 0; next < costs_.nodes(); ++next) {
      const int stage = stage_of_node_[at(next)];
      if (!limits.node_allowed[at(next)] || !limits.stage_allowed[at(stage)]) continue;
      if (std::find(p.stages.begin(), p.stages.end(), stage) != p.stages.end() || !Rules{}.may_visit(seen, stage) ||
          (in_order_ && stage < seen.frontier))
        continue;
      push(p, number, next, s.count + 1, who.origin, s.known + hop(s.node, next));
    }
  }

  // How many stages a partial way lacks to become whole, if it visits none below those it has seen: it may still.
  int lacks(const progress& p, int number, const way_limits& limits) const {
    int last = 0, ahead = 0;
    for (int i = number; i >= 0; i = p.states[at(i)].parent)
      last = (std::max)(last, stage_of_node_[at(p.states[at(i)].node)]);
    for (std::size_t s = at(last) + 1; s < limits.stage_allowed.size(); ++s) ahead += limits.stage_allowed[s];
    return (std::max)(length_ - p.states[at(number)].count - ahead, 0);
  }
  // The best partial way of each length goes on in turn, for some turns and until there is a whole way.
  std::optional<planned_way> by_turns(progress p, const agent& who, const way_limits& limits) const {
    constexpr int turns = 200;
    std::vector<std::priority_queue<entry>> of_length(at(length_ + 1));
    double best = std::numeric_limits<double>::infinity();
    const auto sort_in = [&] {
      for (; !p.open.empty(); p.open.pop()) {
        entry e = p.open.top();
        if (e.whole >= 0) {
          best = (std::min)(best, e.bound);
          continue;
        }
        e.lacks = lacks(p, e.state, limits);
        of_length[at(p.states[at(e.state)].count)].push(e);
      }
    };
    sort_in();
    bool more = true;
    for (int turn = 0; more && (turn < turns || p.whole.empty()); ++turn) {
      more = false;
      for (auto& queue : of_length) {
        while (!queue.empty() && queue.top().bound >= best) queue.pop();
        if (queue.empty()) continue;
        const entry e = queue.top();
        queue.pop();
        more = true;
        go_on(p, e.state, who, limits);
        sort_in();
      }
    }
    const auto found = std::min_element(p.whole.begin(), p.whole.end(), [](const planned_way& a, const planned_way& b) {
      return a.seconds < b.seconds;
    });
    return found == p.whole.end() ? std::nullopt : std::optional(std::move(*found));
  }

  // One node further and back again, forward and backward there.
  double hop(int from, int to) const {
    return costs_.send(from, to) + costs_.send(to, from) + (1 + costs_.backward_factor) * costs_.forward[at(to)];
  }
  void push(progress& p, int parent, int node, int count, int origin, double known) const {
    const double bound = known + left_[at(origin)][at(length_ - count)][at(node)];
    if (bound == std::numeric_limits<double>::infinity()) return;
    p.states.push_back({parent, node, count, known});
    p.open.push({bound, static_cast<int>(p.states.size()) - 1, -1});
  }

  const schedule::visit_costs& costs_;
  std::span<const int> stage_of_node_;
  int length_;
  std::size_t most_states_;
  bool in_order_;
  std::vector<std::vector<std::vector<double>>> left_{};
};

}  // namespace detail

}  // namespace heddle::inline v0::plan

// heddle/plan/skippipe/conflict_search.hpp: searches collision-free paths for all microbatches.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/plan/skippipe/options.hpp>
#include <heddle/plan/skippipe/way.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

namespace detail {

/// One visit as planned, and whose it is.
struct planned_visit {
  int agent, copy, position, node;
  double start, end;
};

struct planned_collision {
  planned_visit first, second;  // the one that begins first, and the one that comes upon it
};

/// The first collision in time among these ways: two visits to a node of which not both are backward.
template <class Ways>
std::optional<planned_collision> first_collision(const Ways& ways, int length) {
  std::vector<planned_visit> visits;
  for (int a = 0; a < static_cast<int>(ways.size()); ++a) {
    const planned_way& way = ways[static_cast<std::size_t>(a)];
    for (int c = 0; c < static_cast<int>(way.times.size()); ++c)
      for (int k = 0; k <= 2 * length; ++k) {
        const auto [start, end] = way.times[static_cast<std::size_t>(c)][static_cast<std::size_t>(k)];
        if (start == end) continue;  // what takes no time is in nobody's way
        const int hop = k < length ? k : k == length ? 0 : 2 * length - k;
        visits.push_back({a, c, k, way.nodes[static_cast<std::size_t>(hop)], start, end});
      }
  }
  // Of visits that begin together the one that is further on its way stays.
  std::sort(visits.begin(), visits.end(), [](const planned_visit& x, const planned_visit& y) {
    if (x.start != y.start) return x.start < y.start;
    if (x.position != y.position) return x.position > y.position;
    return x.agent != y.agent ? x.agent < y.agent : x.copy < y.copy;
  });
  for (std::size_t j = 0; j < visits.size(); ++j)
    for (std::size_t i = j; i-- > 0;) {
      const planned_visit &x = visits[i], &y = visits[j];
      if (x.node != y.node || x.end <= y.start || (x.position > length && y.position > length)) continue;
      return planned_collision{x, y};
    }
  return std::nullopt;
}

/// The times of fixed ways without a collision: whoever comes later waits.
inline std::vector<planned_way> without_collisions(const schedule::visit_costs& costs, const std::vector<agent>& agents,
                                                   std::vector<planned_way> ways, int length) {
  std::vector<std::vector<busy_time>> busy(agents.size());
  for (std::size_t a = 0; a < agents.size(); ++a) ways[a] = walk_all(costs, agents[a], {}, std::move(ways[a].nodes));
  while (const auto hit = first_collision(ways, length)) {
    const auto late = static_cast<std::size_t>(hit->second.agent);
    busy[late].push_back({hit->second.copy, hit->second.node, hit->first.start, hit->first.end});
    ways[late] = walk_all(costs, agents[late], busy[late], std::move(ways[late].nodes));
  }
  return ways;
}

/// The first `limit` ways to choose `count` of `all`, in lexicographic order.
inline std::vector<std::vector<int>> choices(std::span<const int> all, int count, std::size_t limit) {
  std::vector<std::vector<int>> found;
  const int n = static_cast<int>(all.size());
  if (count > n) return found;
  std::vector<int> pick(static_cast<std::size_t>(count));
  for (int k = 0; k < count; ++k) pick[static_cast<std::size_t>(k)] = k;
  while (found.size() < limit) {
    std::vector<int> chosen;
    for (const int k : pick) chosen.push_back(all[static_cast<std::size_t>(k)]);
    found.push_back(std::move(chosen));
    int k = count - 1;
    while (k >= 0 && pick[static_cast<std::size_t>(k)] == n - count + k) --k;
    if (k < 0) break;
    ++pick[static_cast<std::size_t>(k)];
    for (int j = k + 1; j < count; ++j) pick[static_cast<std::size_t>(j)] = pick[static_cast<std::size_t>(j - 1)] + 1;
  }
  return found;
}

/// Conflict-based search: ways are planned for each agent alone; where they conflict, one side or the other is told not
/// to, and plans again. Conflicts are resolved in this order: an overfull stage and an overfull node (TC1), a collision
/// (TC2). `score(paths)` says how long a set of ways takes when it runs.
/// Source: Sharon et al. 2015, "Conflict-based search for optimal multi-agent pathfinding"; Blagoev et al. 2025.
template <path_rules Rules, class Score>
class conflict_search {
 public:
  conflict_search(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                  const std::vector<agent>& agents, const skip_options& options, const Score& score)
      : costs_(costs),
        stage_of_node_(stage_of_node),
        stages_(stages),
        agents_(agents),
        o_(options),
        score_(score),
        find_way_(costs, stage_of_node, options.path_length,
                  options.exhaustive ? (std::numeric_limits<std::size_t>::max)() : at(options.way_states),
                  options.in_order),
        size_(static_cast<std::size_t>(stages), 0) {
    for (const int s : stage_of_node) ++size_[at(s)];
  }

  /// The best ways found, without collisions if asked for; nothing if the limits of the search leave none.
  std::optional<std::vector<planned_way>> run() {
    node root;
    for (const agent& who : agents_) {
      way_limits free{std::vector<char>(stage_of_node_.size(), 1), std::vector<char>(at(stages_), 1), {}, {}, {}};
      auto way = find_way_(who, free);
      if (!way) return std::nullopt;
      root.of.push_back(std::make_shared<const told>(told{std::move(free), std::move(*way)}));
    }
    root.key = root.seconds = planned_seconds(root);
    std::vector<node> start{root};
    if (!o_.exhaustive) start = balance_stages(root);
    node fallback = start.empty() ? root : start.front();
    balance_nodes(std::move(start));
    if (!best_ && !o_.exhaustive) repair(std::move(fallback));
    return best_;
  }

  int searched() const noexcept { return searched_; }
  double best_seconds() const noexcept { return best_seconds_; }

 private:
  struct told {
    way_limits limits;
    planned_way way;
  };
  struct node {
    std::vector<std::shared_ptr<const told>> of{};  // of each agent
    double key = 0;
    double seconds = 0;
    int excess = 0;  // visits too many, of stages or nodes
    int depth = 0;
    int number = 0;
  };
  struct sooner {
    bool operator()(const node& a, const node& b) const noexcept {
      if (a.key != b.key) return a.key < b.key;
      return a.depth != b.depth ? a.depth > b.depth : a.number < b.number;
    }
  };
  using open_set = std::set<node, sooner>;
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  static double planned_seconds(const node& n) {
    double t = 0;
    for (const auto& a : n.of) t = (std::max)(t, a->way.seconds);
    return t;
  }
  // While nothing has been found, visits too many count more and more, so that the search turns from broad to deep.
  void press(open_set& open, int& due, bool found) {
    if (o_.exhaustive || found || searched_ < due) return;
    due += (std::max)(o_.search_nodes / 8, 1);
    pressure_ *= 10;
    open_set again;
    while (!open.empty()) {
      node n = std::move(open.extract(open.begin()).value());
      n.key = n.seconds + pressure_ * n.excess;
      again.insert(std::move(n));
    }
    open = std::move(again);
  }
  bool spent() const noexcept { return !o_.exhaustive && searched_ >= o_.search_nodes; }
  int weight() const noexcept { return o_.copies; }  // microbatches of an agent

  // The agents, those whose way is over first in front.
  std::vector<int> fastest_first(const node& n, const std::vector<int>& who) const {
    std::vector<int> order = who;
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      const double x = n.of[at(a)]->way.seconds, y = n.of[at(b)]->way.seconds;
      return x != y ? x < y : a < b;
    });
    return order;
  }

  // A child in which some agents have been told more; false if one of them finds no way then.
  template <class Tell>
  bool tell(node& child, const std::vector<int>& who, const Tell& more) {
    for (const int a : who) {
      told next{child.of[at(a)]->limits, {}};
      more(next.limits);
      auto way = find_way_(agents_[at(a)], next.limits);
      if (!way) return false;
      next.way = std::move(*way);
      child.of[at(a)] = std::make_shared<const told>(std::move(next));
    }
    child.key = child.seconds = planned_seconds(child);
    child.excess = 0;
    ++child.depth;
    child.number = ++numbered_;
    return true;
  }

  // An overfull stage, who visits it, and how many agents too many; stage -1 if there is none.
  struct overfull {
    int where = -1;
    int excess = 0;
    std::vector<int> who{};
  };
  overfull overfull_stage(const node& n) const {
    for (int s = 1; s < stages_; ++s) {
      std::vector<int> who;
      for (int a = 0; a < static_cast<int>(agents_.size()); ++a)
        for (const int k : n.of[at(a)]->way.nodes)
          if (stage_of_node_[at(k)] == s) who.push_back(a);
      const int room = size_[at(s)] * (o_.slots / weight());
      if (static_cast<int>(who.size()) > room) return {s, static_cast<int>(who.size()) - room, std::move(who)};
    }
    return {};
  }
  int stage_excess(const node& n) const {
    std::vector<int> visits(at(stages_), 0);
    for (const auto& a : n.of)
      for (const int k : a->way.nodes) ++visits[at(stage_of_node_[at(k)])];
    int excess = 0;
    for (int s = 1; s < stages_; ++s) excess += (std::max)(visits[at(s)] - size_[at(s)] * (o_.slots / weight()), 0);
    return excess;
  }
  overfull overfull_node(const node& n, int* excess_visits) const {
    overfull first;
    const int room = o_.slots / weight();
    for (int k = 0; k < costs_.nodes(); ++k) {
      if (stage_of_node_[at(k)] == 0) continue;
      std::vector<int> who;
      for (int a = 0; a < static_cast<int>(agents_.size()); ++a) {
        const auto& nodes = n.of[at(a)]->way.nodes;
        if (std::find(nodes.begin(), nodes.end(), k) != nodes.end()) who.push_back(a);
      }
      const int excess = static_cast<int>(who.size()) - room;
      if (excess <= 0) continue;
      *excess_visits += excess;
      if (first.where < 0) first = {k, excess, std::move(who)};
    }
    return first;
  }

  // A child for each choice of `excess` of these microbatches, to whose limits `forbid` is done.
  template <class Forbid>
  std::vector<node> leaving_children(const node& n, const std::vector<int>& may_leave, int excess, int branches,
                                     const Forbid& forbid) {
    std::vector<node> children;
    const std::size_t limit = o_.exhaustive ? (std::numeric_limits<std::size_t>::max)() : at(branches);
    for (const auto& leave : choices(fastest_first(n, may_leave), excess, limit)) {
      node child = n;
      if (tell(child, leave, forbid)) children.push_back(std::move(child));
    }
    return children;
  }
  std::vector<node> stage_children(const node& n, const overfull& too_many) {
    std::vector<int> may_leave;
    for (const int a : too_many.who) {
      const auto& open = n.of[at(a)]->limits.stage_allowed;
      if (std::count(open.begin(), open.end(), char{1}) > o_.path_length) may_leave.push_back(a);
    }
    return leaving_children(n, may_leave, too_many.excess, o_.stage_branches,
                            [&](way_limits& l) { l.stage_allowed[at(too_many.where)] = 0; });
  }
  std::vector<node> node_children(const node& n, const overfull& too_many) {
    const int stage = stage_of_node_[at(too_many.where)];
    std::vector<int> may_leave;
    for (const int a : too_many.who) {
      const way_limits& l = n.of[at(a)]->limits;
      bool other =
          o_.exhaustive && std::count(l.stage_allowed.begin(), l.stage_allowed.end(), char{1}) > o_.path_length;
      for (int k = 0; k < costs_.nodes(); ++k)
        other = other || (k != too_many.where && stage_of_node_[at(k)] == stage && l.node_allowed[at(k)]);
      if (other) may_leave.push_back(a);
    }
    return leaving_children(n, may_leave, too_many.excess, o_.node_branches,
                            [&](way_limits& l) { l.node_allowed[at(too_many.where)] = 0; });
  }
  std::vector<node> collision_children(const node& n, const planned_collision& hit) {
    if (o_.exhaustive) return all_collision_children(n, hit);
    const auto forward = [&](const planned_visit& v) { return v.position <= o_.path_length; };
    bool second_waits = true, first_waits = false;
    if (forward(hit.first) && forward(hit.second)) {
      // Both sides are tried, but of the slowest quarter none is held up by a faster one.
      const auto slower = [&](const planned_visit& a, const planned_visit& b) {
        if (n.of[at(a.agent)]->way.seconds < n.of[at(b.agent)]->way.seconds) return true;
        int rank = 0;
        for (const auto& other : n.of) rank += other->way.seconds > n.of[at(a.agent)]->way.seconds ? 1 : 0;
        return 4 * rank > static_cast<int>(agents_.size());
      };
      second_waits = slower(hit.second, hit.first);
      first_waits = slower(hit.first, hit.second);
      if (!second_waits && !first_waits) second_waits = true;
    }
    std::vector<node> children;
    const auto branch = [&](const planned_visit& waits, const planned_visit& stays) {
      node child = n;
      if (tell(child, {waits.agent},
               [&](way_limits& l) { l.busy.push_back({waits.copy, waits.node, stays.start, stays.end}); }))
        children.push_back(std::move(child));
    };
    if (second_waits) branch(hit.second, hit.first);
    if (first_waits) branch(hit.first, hit.second);
    return children;
  }

  // Nothing left out: both keep their ways and one of them waits, or one of them takes another way. (To wait and to be free
  // to take another way is not enough: on another way an agent may come to the node earlier.)
  std::vector<node> all_collision_children(const node& n, const planned_collision& hit) {
    std::vector<node> children;
    const int first = hit.first.agent, second = hit.second.agent;
    const auto both_keep = [&](const planned_visit& waits, const planned_visit& stays) {
      node child = n;
      const auto keep_way = [&](int a) {
        const std::vector<int> way = n.of[at(a)]->way.nodes;
        return tell(child, {a}, [&](way_limits& l) {
          l.only_way = way;
          if (a == waits.agent) l.busy.push_back({waits.copy, waits.node, stays.start, stays.end});
        });
      };
      if (keep_way(first) && (first == second || keep_way(second))) children.push_back(std::move(child));
    };
    both_keep(hit.second, hit.first);
    both_keep(hit.first, hit.second);
    for (const int a : {first, second}) {
      node child = n;
      if (child.of[at(a)]->limits.only_way.empty() &&
          tell(child, {a}, [&](way_limits& l) { l.not_these.push_back(n.of[at(a)]->way.nodes); }))
        children.push_back(std::move(child));
      if (first == second) break;
    }
    return children;
  }

  static std::vector<std::vector<char>> stages_told(const node& n) {
    std::vector<std::vector<char>> all;
    for (const auto& a : n.of) all.push_back(a->limits.stage_allowed);
    return all;
  }
  std::vector<std::vector<int>> ways_of(const node& n) const {
    std::vector<std::vector<int>> ways;
    for (const auto& a : n.of) ways.push_back(a->way.nodes);
    return ways;
  }

  // Sets of ways that overfill no stage, the stages of each agent fixed.
  std::vector<node> balance_stages(node root) {
    open_set open;
    std::set<std::vector<std::vector<char>>> seen, solved;
    std::vector<node> solutions;
    open.insert(std::move(root));
    int due = o_.search_nodes / 8;
    while (!open.empty() && static_cast<int>(solutions.size()) < o_.stage_solutions &&
           (solutions.empty() || searched_ < o_.search_nodes / 2) && !spent()) {
      press(open, due, !solutions.empty());
      node n = std::move(open.extract(open.begin()).value());
      if (!seen.insert(stages_told(n)).second) continue;
      ++searched_;
      const overfull too_many = overfull_stage(n);
      if (too_many.where >= 0) {
        for (node& child : stage_children(n, too_many)) {
          child.excess = stage_excess(child);
          child.key = child.seconds + (pressure_ > 0.01 ? pressure_ * child.excess : 0.0);
          open.insert(std::move(child));
        }
        continue;
      }
      for (auto& a : n.of) {
        told fixed = *a;
        fixed.limits.stage_allowed.assign(at(stages_), 0);
        for (const int k : fixed.way.nodes) fixed.limits.stage_allowed[at(stage_of_node_[at(k)])] = 1;
        a = std::make_shared<const told>(std::move(fixed));
      }
      if (solved.insert(stages_told(n)).second) solutions.push_back(std::move(n));
    }
    return solutions;
  }

  // From there to sets of ways that overfill no node and, if asked for, do not collide.
  void balance_nodes(std::vector<node> start) {
    open_set open;
    for (node& n : start) open.insert(std::move(n));
    std::set<std::vector<std::vector<int>>> seen;
    int final = 0;
    double first = -1;
    pressure_ = 0.01;
    int due = searched_ + (o_.search_nodes - searched_) / 4;
    while (!open.empty() && !spent()) {
      press(open, due, best_.has_value());
      node n = std::move(open.extract(open.begin()).value());
      ++searched_;
      if (o_.exhaustive) {
        const overfull stage = overfull_stage(n);
        if (stage.where >= 0) {
          for (node& child : stage_children(n, stage)) open.insert(std::move(child));
          continue;
        }
      }
      int excess = 0;
      const overfull too_many = overfull_node(n, &excess);
      if (too_many.where >= 0) {
        if (!o_.exhaustive && best_ && static_cast<int>(open.size()) > o_.open_nodes) continue;
        for (node& child : node_children(n, too_many)) {
          static_cast<void>(overfull_node(child, &child.excess));
          if (!o_.exhaustive) {
            child.key += pressure_ * child.excess;
            if (!seen.insert(limits_of(child)).second) continue;
          }
          open.insert(std::move(child));
        }
        continue;
      }
      const auto hit = o_.avoid_collisions ? first_collision(planned(n), o_.path_length) : std::nullopt;
      if (o_.exhaustive) {
        if (!hit) {
          keep(n, planned_seconds(n));
          return;
        }
        for (node& child : collision_children(n, *hit)) open.insert(std::move(child));
        continue;
      }
      const double takes = seconds_of(n);
      if (first < 0) first = takes;
      if (takes < best_seconds_) keep(n, takes);
      if (takes < o_.good_enough * first) return;
      if (!hit) {
        if (++final >= o_.final_solutions) return;
        continue;
      }
      for (node& child : collision_children(n, *hit)) {
        child.key = seconds_of(child);
        if (child.key <= best_seconds_ + o_.give_up_above) open.insert(std::move(child));
      }
    }
  }

  // Where the search has found nothing: one agent after the other leaves an overfull node for nodes that have slots left,
  // or, where no way leads through such, pushes others out.
  void repair(node n) {
    const counter_random random(o_.seed, 0x5C1E);
    const int room = o_.slots / weight(), agents = static_cast<int>(agents_.size());
    for (int step = 0; step < o_.search_nodes; ++step) {
      std::vector<int> visits(at(costs_.nodes()), 0), crowded;
      for (const auto& a : n.of)
        for (const int k : a->way.nodes) ++visits[at(k)];
      for (int a = 0; a < agents; ++a)
        for (const int k : n.of[at(a)]->way.nodes)
          if (stage_of_node_[at(k)] != 0 && visits[at(k)] > room) crowded.push_back(a);
      if (crowded.empty()) {
        keep(n, seconds_of(n));
        return;
      }
      ++searched_;
      const auto u = static_cast<std::uint64_t>(step);
      const int a = crowded[static_cast<std::size_t>(random.integer(3 * u) % crowded.size())];
      for (const int k : n.of[at(a)]->way.nodes) --visits[at(k)];
      way_limits limits{std::vector<char>(stage_of_node_.size(), 1), std::vector<char>(at(stages_), 1), {}, {}, {}};
      for (int k = 0; k < costs_.nodes(); ++k)
        limits.node_allowed[at(k)] = stage_of_node_[at(k)] == 0 || visits[at(k)] < room;
      auto way = find_way_(agents_[at(a)], limits);
      if (!way) {
        for (int k = 0; k < costs_.nodes(); ++k)
          limits.node_allowed[at(k)] = stage_of_node_[at(k)] == 0 || visits[at(k)] < room ||
                                       random.integer((u << 20) + static_cast<std::uint64_t>(k)) % 2 == 0;
        way = find_way_(agents_[at(a)], limits);
      }
      if (way) n.of[at(a)] = std::make_shared<const told>(told{std::move(limits), std::move(*way)});
    }
  }

  static std::vector<std::vector<int>> limits_of(const node& n) {
    std::vector<std::vector<int>> all;
    for (const auto& a : n.of) {
      std::vector<int> told(a->limits.node_allowed.begin(), a->limits.node_allowed.end());
      told.insert(told.end(), a->limits.stage_allowed.begin(), a->limits.stage_allowed.end());
      all.push_back(std::move(told));
    }
    return all;
  }

  double seconds_of(const node& n) {
    auto ways = ways_of(n);
    const auto found = scored_.find(ways);
    if (found != scored_.end()) return found->second;
    const double t = score_(all_waves(agents_, ways, stage_of_node_, stages_, o_));
    scored_.emplace(std::move(ways), t);
    return t;
  }
  static std::vector<planned_way> planned(const node& n) {
    std::vector<planned_way> ways;
    for (const auto& a : n.of) ways.push_back(a->way);
    return ways;
  }
  void keep(const node& n, double takes) {
    best_seconds_ = takes;
    best_ = planned(n);
  }

  const schedule::visit_costs& costs_;
  std::span<const int> stage_of_node_;
  int stages_;
  const std::vector<agent>& agents_;
  const skip_options& o_;
  const Score& score_;
  way_search<Rules> find_way_;
  std::vector<int> size_;  // nodes of each stage
  std::map<std::vector<std::vector<int>>, double> scored_{};
  std::optional<std::vector<planned_way>> best_{};
  double best_seconds_ = std::numeric_limits<double>::infinity();
  double pressure_ = 0.01;
  int searched_ = 0, numbered_ = 0;
};

}  // namespace detail

}  // namespace heddle::inline v0::plan

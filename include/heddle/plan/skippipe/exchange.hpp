// heddle/plan/skippipe/exchange.hpp: improves a plan by exchanging nodes between paths.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/plan/skippipe/options.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan::detail {

// The stages of a way as rules and options allow them, brought into their order if need be; false if they do not then either.
template <path_rules Rules>
bool make_legal(std::vector<int>& way, std::span<const int> stage_of_node, bool in_order) {
  const auto stage = [&](int n) { return stage_of_node[static_cast<std::size_t>(n)]; };
  const auto legal = [&] {
    std::vector<int> stages;
    for (const int n : way) stages.push_back(stage(n));
    return allowed<Rules>(stages) && (!in_order || std::is_sorted(stages.begin(), stages.end()));
  };
  if (legal()) return true;
  std::sort(way.begin() + 1, way.end(), [&](int a, int b) { return stage(a) < stage(b); });
  return legal();
}

// How many ways go through each node and stage, and whether a node may lose one (`even_visits`).
struct way_counts {
  std::vector<int> of_node, of_stage;
  int least = 0;  // of a node
  way_counts(const std::vector<std::vector<int>>& ways, std::span<const int> stage_of_node, int stages,
             const skip_options& o)
      : of_node(stage_of_node.size(), 0), of_stage(static_cast<std::size_t>(stages), 0) {
    for (const auto& way : ways)
      for (const int n : way) {
        ++of_node[static_cast<std::size_t>(n)];
        ++of_stage[static_cast<std::size_t>(stage_of_node[static_cast<std::size_t>(n)])];
      }
    const auto origins = std::count(stage_of_node.begin(), stage_of_node.end(), 0);
    const auto others = static_cast<std::ptrdiff_t>(stage_of_node.size()) - origins;
    if (o.even_visits && others > 0)
      least = static_cast<int>(static_cast<std::ptrdiff_t>(ways.size()) * (o.path_length - 1) / others);
  }
  void move(int from, int to, std::span<const int> stage_of_node) {
    for (const auto& [node, change] : {std::pair(from, -1), std::pair(to, 1)}) {
      of_node[static_cast<std::size_t>(node)] += change;
      of_stage[static_cast<std::size_t>(stage_of_node[static_cast<std::size_t>(node)])] += change;
    }
  }
};

/// Leads ways through nodes that get fewer than others, and through stages that get none, until visits are even up to
/// rounding: each such node takes the place of another in a way that allows it, that one of a third if it has none to
/// give, and so on. What rules do not let be even stays as it is.
template <path_rules Rules>
void even_out(std::vector<std::vector<int>>& ways, std::span<const int> stage_of_node, int stages,
              const skip_options& o) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const auto stage = [&](int n) { return stage_of_node[at(n)]; };
  const int nodes = static_cast<int>(stage_of_node.size());
  way_counts counts(ways, stage_of_node, stages, o);
  const auto replace = [&](std::vector<int>& way, int old, int by) {
    std::vector<int> other = way;
    std::replace(other.begin() + 1, other.end(), old, by);
    if (!make_legal<Rules>(other, stage_of_node, o.in_order)) return false;
    way = std::move(other);
    return true;
  };
  struct step {
    int by = -1, way = -1;  // which node takes its place, and where
  };
  const auto lacks = [&](int n) {
    return stage(n) != 0 && (counts.of_node[at(n)] < counts.least || counts.of_stage[at(stage(n))] == 0);
  };
  const auto can_give = [&](int n, int to) {
    return counts.of_node[at(n)] > counts.least && (counts.of_stage[at(stage(n))] > 1 || stage(n) == stage(to));
  };
  const auto fill = [&](int to) {
    std::vector<step> reached(at(nodes));
    std::vector<int> queue{to};
    for (std::size_t q = 0; q < queue.size(); ++q)
      for (int w = 0; w < static_cast<int>(ways.size()); ++w)
        for (const int n : std::vector<int>(ways[at(w)].begin() + 1, ways[at(w)].end())) {
          std::vector<int> tried = ways[at(w)];
          if (n == to || reached[at(n)].by >= 0 || !replace(tried, n, queue[q])) continue;
          reached[at(n)] = {queue[q], w};
          queue.push_back(n);
          if (!can_give(n, to)) continue;
          const auto before = ways;
          bool fine = true;
          for (int k = n; fine && k != to; k = reached[at(k)].by)
            fine = replace(ways[at(reached[at(k)].way)], k, reached[at(k)].by);
          if (!fine) {  // a way that is changed twice
            ways = before;
            continue;
          }
          counts.move(n, to, stage_of_node);
          return true;
        }
    return false;
  };
  for (int n = 0; n < nodes; ++n)
    while (lacks(n) && fill(n)) {
    }
}

/// Exchanges nodes between ways, or one node of a way for one that has a slot left, and keeps what `score` likes better;
/// now and then something a little worse, less and less so. Nodes are visited as often as before or within their slots, so
/// that TC1 goes on to hold, and even visits stay so. Returns the best score.
template <path_rules Rules, class Score>
double exchange_nodes(std::vector<std::vector<int>>& ways, const std::vector<agent>& agents,
                      std::span<const int> stage_of_node, int stages, const skip_options& o, const Score& score) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const counter_random random(o.seed, 0x5C1F);
  std::uint64_t drawn = 0;
  const auto below = [&](int n) { return static_cast<int>(random.integer(drawn++) % static_cast<std::uint64_t>(n)); };
  const auto legal = [&](std::vector<int>& way) { return make_legal<Rules>(way, stage_of_node, o.in_order); };
  const auto seconds = [&] { return score(all_waves(agents, ways, stage_of_node, stages, o)); };

  way_counts counts(ways, stage_of_node, stages, o);
  double now = seconds(), best = now;
  auto best_ways = ways;
  const int count = static_cast<int>(ways.size()), inner = o.path_length - 1;
  if (inner < 1) return best;
  for (int step = 0; step < o.exchanges; ++step) {
    const auto a = at(below(count));
    const auto i = at(1 + below(inner));
    const int choice = below(8);
    auto b = a;
    const auto before_a = ways[a];
    std::vector<int> before_b;
    int gave = -1, took = -1;
    if (choice == 0 && inner > 1) {  // another order of the same nodes
      std::swap(ways[a][i], ways[a][1 + i % at(inner)]);
    } else if (choice == 1) {  // a node that has a slot left
      took = below(static_cast<int>(stage_of_node.size()));
      if (stage_of_node[at(took)] == 0 || counts.of_node[at(took)] >= o.slots / o.copies) continue;
      gave = ways[a][i];
      const int from = stage_of_node[at(gave)];
      if (o.even_visits && (counts.of_node[at(gave)] <= counts.least ||
                            (from != stage_of_node[at(took)] && counts.of_stage[at(from)] == 1)))
        continue;
      ways[a][i] = took;
    } else {
      b = at(below(count));
      if (a == b) continue;
      before_b = ways[b];
      std::swap(ways[a][i], ways[b][at(1 + below(inner))]);
    }
    const bool fine = legal(ways[a]) && (a == b || legal(ways[b]));
    if (fine && (ways[a] != before_a || (a != b && ways[b] != before_b))) {
      const double then = seconds();
      const double left = 1.0 - static_cast<double>(step) / o.exchanges;
      const double heat = 0.01 * best * left * left;
      if (then <= now || (heat > 0 && random.uniform(drawn++) < std::exp((now - then) / heat))) {
        now = then;
        if (gave >= 0) counts.move(gave, took, stage_of_node);
        if (now < best) best = now, best_ways = ways;
        continue;
      }
    }
    ways[a] = before_a;
    if (a != b) ways[b] = before_b;
  }
  ways = std::move(best_ways);
  return best;
}

}  // namespace heddle::inline v0::plan::detail

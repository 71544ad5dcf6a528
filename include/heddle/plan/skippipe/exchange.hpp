// heddle/plan/skippipe/exchange.hpp: a plan made better by exchanging nodes between ways.
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

/// Exchanges nodes between ways, or one node of a way for one that has a slot left, and keeps what `score` likes better;
/// now and then something a little worse, less and less so. Nodes are visited as often as before or within their slots, so
/// that TC1 goes on to hold. Returns the best score.
template <path_rules Rules, class Score>
double exchange_nodes(std::vector<std::vector<int>>& ways, const std::vector<agent>& agents,
                      std::span<const int> stage_of_node, int stages, const skip_options& o, const Score& score) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const counter_random random(o.seed, 0x5C1F);
  std::uint64_t drawn = 0;
  const auto below = [&](int n) { return static_cast<int>(random.integer(drawn++) % static_cast<std::uint64_t>(n)); };
  const auto stages_of = [&](const std::vector<int>& way) {
    std::vector<int> s;
    for (const int n : way) s.push_back(stage_of_node[at(n)]);
    return s;
  };
  const auto legal = [&](std::vector<int>& way) {
    if (allowed<Rules>(stages_of(way))) return true;
    std::sort(way.begin() + 1, way.end(), [&](int a, int b) { return stage_of_node[at(a)] < stage_of_node[at(b)]; });
    return allowed<Rules>(stages_of(way));
  };
  const auto seconds = [&] { return score(all_waves(agents, ways, stage_of_node, stages, o)); };

  std::vector<int> visits(stage_of_node.size(), 0), room_of_stage(at(stages), 0);
  for (const auto& way : ways)
    for (const int n : way) visits[at(n)] += o.copies;
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
      if (stage_of_node[at(took)] == 0 || visits[at(took)] + o.copies > o.slots) continue;
      gave = std::exchange(ways[a][i], took);
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
        if (gave >= 0) visits[at(gave)] -= o.copies, visits[at(took)] += o.copies;
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

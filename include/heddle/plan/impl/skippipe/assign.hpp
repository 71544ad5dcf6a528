// heddle/plan/impl/skippipe/assign.hpp: bodies of heddle/plan/skippipe/assign.hpp.
#pragma once

#include <heddle/plan/skippipe/assign.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
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
namespace detail {

HEDDLE_INLINE double bottleneck_matching(const std::vector<std::vector<double>>& edge) {
  const std::size_t rows = edge.size(), columns = edge.front().size();
  std::vector<double> lengths;
  for (const auto& row : edge) lengths.insert(lengths.end(), row.begin(), row.end());
  std::sort(lengths.begin(), lengths.end());
  std::vector<int> row_of(columns);
  std::vector<char> seen(columns);
  const auto matches = [&](double limit) {
    std::fill(row_of.begin(), row_of.end(), -1);
    std::size_t matched = 0;
    const auto augment = [&](auto& self, std::size_t r) -> bool {
      for (std::size_t c = 0; c < columns; ++c) {
        if (edge[r][c] > limit || seen[c]) continue;
        seen[c] = 1;
        if (row_of[c] < 0 || self(self, static_cast<std::size_t>(row_of[c]))) {
          row_of[c] = static_cast<int>(r);
          return true;
        }
      }
      return false;
    };
    for (std::size_t r = 0; r < rows; ++r) {
      std::fill(seen.begin(), seen.end(), char{0});
      matched += augment(augment, r) ? 1 : 0;
    }
    return matched == (std::min)(rows, columns);
  };
  std::size_t low = 0, high = lengths.size() - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (matches(lengths[middle]))
      high = middle;
    else
      low = middle + 1;
  }
  return lengths[low];
}

HEDDLE_INLINE std::pair<double, std::vector<int>> shortest_tour(const std::vector<std::vector<double>>& length) {
  const std::size_t n = length.size();
  if (n == 1) return {0.0, {0}};
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::size_t sets = std::size_t{1} << (n - 1);  // of the points 1 .. n - 1
  std::vector<double> least(sets * n, infinity);
  std::vector<int> from(sets * n, 0);
  for (std::size_t k = 1; k < n; ++k) least[(std::size_t{1} << (k - 1)) * n + k] = length[0][k];
  for (std::size_t set = 1; set < sets; ++set)
    for (std::size_t k = 1; k < n; ++k) {
      const double here = least[set * n + k];
      if (here == infinity) continue;
      for (std::size_t next = 1; next < n; ++next) {
        if (set >> (next - 1) & 1) continue;
        const std::size_t at = (set | std::size_t{1} << (next - 1)) * n + next;
        if (here + length[k][next] < least[at]) least[at] = here + length[k][next], from[at] = static_cast<int>(k);
      }
    }
  std::size_t last = 1, set = sets - 1;
  for (std::size_t k = 2; k < n; ++k)
    if (least[set * n + k] + length[k][0] < least[set * n + last] + length[last][0]) last = k;
  std::pair<double, std::vector<int>> tour{least[set * n + last] + length[last][0], {}};
  if (tour.first == infinity) {  // no tour: any order is as good
    tour.second.resize(n);
    std::iota(tour.second.begin(), tour.second.end(), 0);
    return tour;
  }
  while (set != 0) {
    tour.second.push_back(static_cast<int>(last));
    const std::size_t before = static_cast<std::size_t>(from[set * n + last]);
    set &= ~(std::size_t{1} << (last - 1));
    last = before;
  }
  tour.second.push_back(0);
  std::reverse(tour.second.begin(), tour.second.end());
  return tour;
}

}  // namespace detail
}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {

HEDDLE_INLINE assignment_cost cost_of_assignment(const schedule::visit_costs& costs, std::span<const int> stage_of_node,
                                                 int stages) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<std::vector<int>> group(at((std::max)(stages, 0)));
  bool fits = costs.complete() && stages >= 1 && stages <= 20 && stage_of_node.size() == costs.forward.size();
  for (const int s : stage_of_node) fits = fits && s >= 0 && s < stages;
  if (!fits)
    throw config_error("heddle: an assignment names a stage from 0 to " + std::to_string(stages - 1) +
                       " (at most 19) for each node, and costs are not negative");
  for (int n = 0; n < costs.nodes(); ++n) group[at(stage_of_node[at(n)])].push_back(n);
  for (const auto& nodes : group)
    if (nodes.empty()) throw config_error("heddle: an assignment of nodes leaves a stage without a node");
  assignment_cost cost;
  for (const auto& nodes : group)
    for (const int a : nodes)
      for (const int b : nodes)
        if (a != b) cost.inside = (std::max)(cost.inside, costs.send(a, b));
  std::vector<std::vector<double>> apart(at(stages), std::vector<double>(at(stages), 0.0));
  std::vector<std::vector<double>> edge;
  for (int s = 0; s < stages; ++s)
    for (int t = s + 1; t < stages; ++t) {
      edge.assign(group[at(s)].size(), {});
      for (std::size_t i = 0; i < edge.size(); ++i)
        for (const int b : group[at(t)]) {
          const int a = group[at(s)][i];
          edge[i].push_back((std::max)(costs.send(a, b), costs.send(b, a)) +
                            (std::max)(costs.forward[at(a)], costs.forward[at(b)]));
        }
      apart[at(s)][at(t)] = apart[at(t)][at(s)] = detail::bottleneck_matching(edge);
    }
  std::tie(cost.tour, cost.order) = detail::shortest_tour(apart);
  return cost;
}

}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE std::vector<int> moved_in_circles(const schedule::visit_costs& costs, std::vector<int> of, int stages,
                                                double factor) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const int n = costs.nodes();
  std::vector<char> locked(of.size(), 0);
  const auto inside = [&](int node, int stage) {
    double sum = 0;
    for (int other = 0; other < n; ++other)
      if (other != node && of[at(other)] == stage) sum += costs.send(node, other);
    return sum;
  };
  for (int first = 0; first < stages; ++first) {
    std::vector<std::pair<int, int>> moves;  // node, the stage it left
    double gained = 0, best = 1e-12;
    std::size_t keep = 0;
    int from = first;
    for (int step = 0; step + 1 < stages; ++step) {
      int node = -1, to = -1;
      double most = -std::numeric_limits<double>::infinity();
      for (int a = 0; a < n; ++a) {
        if (locked[at(a)] || of[at(a)] != from) continue;
        const double here = inside(a, from);
        for (int s = 0; s < stages; ++s) {
          const double gain = (factor - 1) * (here - inside(a, s));
          if (s != from && s != first && gain > most) most = gain, node = a, to = s;
        }
      }
      if (node < 0) break;
      moves.emplace_back(node, from);
      of[at(node)] = to;
      locked[at(node)] = 1;
      gained += most;
      from = to;
      // Closing here: the best node of this stage goes to the first one.
      int last = -1;
      double closing = -std::numeric_limits<double>::infinity();
      for (int a = 0; a < n; ++a) {
        if (locked[at(a)] || of[at(a)] != from) continue;
        const double gain = (factor - 1) * (inside(a, from) - inside(a, first));
        if (gain > closing) closing = gain, last = a;
      }
      if (last < 0) break;
      if (gained + closing > best) {
        best = gained + closing;
        keep = moves.size();
      }
    }
    for (std::size_t k = moves.size(); k > keep; --k) of[at(moves[k - 1].first)] = moves[k - 1].second;
    if (keep == 0) continue;
    const int open = of[at(moves[keep - 1].first)];
    int last = -1;
    double closing = -std::numeric_limits<double>::infinity();
    for (int a = 0; a < n; ++a) {
      if (of[at(a)] != open || a == moves[keep - 1].first) continue;
      const double gain = (factor - 1) * (inside(a, open) - inside(a, first));
      if (gain > closing) closing = gain, last = a;
    }
    of[at(last)] = first;
  }
  return of;
}

}  // namespace detail
}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {

HEDDLE_INLINE assignment assign_nodes(const schedule::visit_costs& costs, std::span<const int> sizes,
                                      const assign_options& o) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const int n = costs.nodes(), stages = static_cast<int>(sizes.size());
  int sum = 0;
  for (const int size : sizes) {
    if (size < 1) throw config_error("heddle: plan::assign_nodes: each stage needs at least one node");
    sum += size;
  }
  if (stages < 1 || sum != n)
    throw config_error("heddle: plan::assign_nodes: the stages ask for " + number_text(sum) + " nodes, there are " +
                       std::to_string(n));
  if (o.population < 1 || stages > 20)
    throw config_error("heddle: plan::assign_nodes takes a population of at least one and at most 20 stages");
  const counter_random random(o.seed, 0xD7F3);
  std::uint64_t drawn = 0;
  const auto below = [&](int k) { return static_cast<int>(random.integer(drawn++) % static_cast<std::uint64_t>(k)); };
  const auto total = [&](const std::vector<int>& of) { return cost_of_assignment(costs, of, stages).total(); };

  std::vector<std::vector<int>> people(at(o.population));
  std::vector<double> score;
  for (auto& of : people) {
    for (int s = 0; s < stages; ++s) of.insert(of.end(), at(sizes[at(s)]), s);
    for (int k = n - 1; k > 0; --k) std::swap(of[at(k)], of[at(below(k + 1))]);
    score.push_back(total(of));
  }
  for (int born = 0; born < o.offspring; ++born) {
    const auto mother = at(below(o.population)), father = at(below(o.population));
    std::vector<int> child = people[father], left(sizes.begin(), sizes.end());
    for (int k = 0; k < o.crossover_points; ++k) {
      const auto gene = at(below(n));
      child[gene] = people[mother][gene];
    }
    for (const int s : child) --left[at(s)];
    for (int& s : child) {
      if (left[at(s)] >= 0) continue;
      ++left[at(s)];
      s = static_cast<int>(std::find_if(left.begin(), left.end(), [](int room) { return room > 0; }) - left.begin());
      --left[at(s)];
    }
    if (below(4) == 0) std::swap(child[at(below(n))], child[at(below(n))]);
    double takes = total(child);
    auto moved = detail::moved_in_circles(costs, child, stages, o.factor);
    const double then = total(moved);
    if (then <= takes) child = std::move(moved), takes = then;
    const auto worse = score[mother] > score[father] ? mother : father;
    // Twins would crowd out the rest.
    if (takes < score[worse] && std::find(people.begin(), people.end(), child) == people.end())
      people[worse] = std::move(child), score[worse] = takes;
  }
  // Exchanges of two nodes while they help, from the best few.
  std::vector<std::size_t> ranking(score.size());
  std::iota(ranking.begin(), ranking.end(), std::size_t{0});
  std::sort(ranking.begin(), ranking.end(),
            [&](std::size_t a, std::size_t b) { return score[a] != score[b] ? score[a] < score[b] : a < b; });
  ranking.resize((std::min)(ranking.size(), std::size_t{10}));
  assignment best;
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t who : ranking) {
    std::vector<int> of = people[who];
    double takes = score[who];
    for (bool better = true; better;) {
      better = false;
      for (std::size_t a = 0; a < of.size(); ++a)
        for (std::size_t b = a + 1; b < of.size(); ++b) {
          if (of[a] == of[b]) continue;
          std::swap(of[a], of[b]);
          const double then = total(of);
          if (then < takes - 1e-12)
            takes = then, better = true;
          else
            std::swap(of[a], of[b]);
        }
    }
    if (best.stage_of_node.empty() || takes < least) least = takes, best.stage_of_node = std::move(of);
  }
  // Stages are numbered along the tour.
  best.cost = cost_of_assignment(costs, best.stage_of_node, stages);
  std::vector<int> number(at(stages));
  for (int k = 0; k < stages; ++k) number[at(best.cost.order[at(k)])] = k;
  for (int& s : best.stage_of_node) s = number[at(s)];
  std::iota(best.cost.order.begin(), best.cost.order.end(), 0);
  return best;
}

}  // namespace heddle::inline v0::plan

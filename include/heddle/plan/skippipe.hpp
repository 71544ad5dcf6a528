// heddle/plan/skippipe.hpp: paths of microbatches through some stages, on distant nodes.
#pragma once

#include <heddle/plan/skippipe/conflict_search.hpp>
#include <heddle/plan/skippipe/exchange.hpp>
#include <heddle/plan/skippipe/options.hpp>
#include <heddle/plan/skippipe/rules.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// How long the first wave of a plan takes where it goes as planned: a score that needs no simulator.
struct planned_score {
  const schedule::visit_costs& costs;
  double operator()(const schedule::path_table& paths) const {
    std::vector<agent> agents;
    std::vector<planned_way> ways;
    for (int i = 0; i < paths.microbatches(); ++i) {
      if (paths.waits_for(i) >= 0) continue;
      agents.push_back({paths.origin(i), {paths.ready_at(i)}});
      ways.push_back({{paths.path(i).begin(), paths.path(i).end()}, {}, 0});
    }
    double seconds = 0;
    for (const planned_way& w : detail::without_collisions(costs, agents, std::move(ways), paths.length))
      seconds = (std::max)(seconds, w.seconds);
    return seconds;
  }
};

/// Plans the ways of all microbatches: each starts on its node of stage 0 and goes through `path_length` stages
/// that `Rules` allow, so that no node is asked for more than its slots (TC1, with `even_visits` for no more than
/// others) and, if asked for, no two visits to a node collide (TC2). First a conflict-based search with the limits
/// of `options`, then exchanges of nodes between ways; the best plan by `score(paths)`, seconds of all waves, wins
/// (`sim::serial_nodes` simulates a run; `planned_score` needs no simulator). Deterministic: the same plan for the
/// same arguments.
/// Shapes: `stage_of_node[n]` is the stage node n holds, of `stages`. Errors: `config_error` if the numbers cannot fit;
/// `schedule_error` if the limits of the search leave no plan.
/// Source: Blagoev et al. 2025, arXiv:2502.19913; the exchanges are ours.
template <path_rules Rules = published_rules, class Score>
  requires std::convertible_to<std::invoke_result_t<const Score&, const schedule::path_table&>, double>
skip_plan skippipe(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                   const skip_options& asked, const Score& score) {
  detail::require_options(costs, stage_of_node, stages, asked);
  const skip_options options = detail::with_slots_in_use(asked, stage_of_node);
  const std::vector<agent> agents = detail::agents_of_wave(costs, stage_of_node, options);
  skip_plan plan;
  plan.seconds = plan.searched_seconds = std::numeric_limits<double>::infinity();
  std::optional<std::vector<planned_way>> best;
  const auto try_search = [&](const skip_options& o) {
    detail::conflict_search<Rules, Score> search(costs, stage_of_node, stages, agents, o, score);
    std::optional<std::vector<planned_way>> found = search.run();
    plan.searched += search.searched();
    if (!found) return;
    std::vector<std::vector<int>> ways;
    for (const planned_way& w : *found) ways.push_back(w.nodes);
    if (o.even_visits) detail::even_out<Rules>(ways, stage_of_node, stages, o);
    double seconds = score(detail::all_waves(agents, ways, stage_of_node, stages, o));
    plan.searched_seconds = (std::min)(plan.searched_seconds, seconds);
    if (!o.exhaustive && o.exchanges > 0)
      seconds = detail::exchange_nodes<Rules>(ways, agents, stage_of_node, stages, o, score);
    if (best && seconds >= plan.seconds) return;
    plan.seconds = seconds;
    for (std::size_t a = 0; a < ways.size(); ++a)
      if (ways[a] != (*found)[a].nodes) (*found)[a] = detail::walk_all(costs, agents[a], {}, ways[a]);
    best = std::move(found);
  };
  try_search(options);
  if (options.avoid_collisions && !options.exhaustive) {
    // A plan made without a look at collisions, whose microbatches then wait, is never to be faster.
    skip_options balanced = options;
    balanced.avoid_collisions = false;
    try_search(balanced);
  }
  if (!best)
    throw schedule_error("heddle: plan::skippipe found no plan among " + std::to_string(plan.searched) +
                         " sets of constraints; give it more search_nodes, more slots or looser rules" +
                         (options.even_visits ? ", or no even_visits" : ""));
  if (options.avoid_collisions && detail::first_collision(*best, options.path_length))
    best = detail::without_collisions(costs, agents, std::move(*best), options.path_length);
  plan.collision_free = !detail::first_collision(*best, options.path_length);
  std::vector<std::vector<int>> ways;
  for (const planned_way& w : *best) ways.push_back(w.nodes);
  plan.paths = detail::all_waves(agents, ways, stage_of_node, stages, options);
  int microbatch = 0;
  for (const planned_way& w : *best)
    for (const auto& times : w.times) {
      for (int k = 0; k < plan.paths.visits(); ++k) {
        const auto [start, end] = times[static_cast<std::size_t>(k)];
        plan.planned.visits.push_back({plan.paths.node_at(microbatch, k), microbatch, k, start, end});
        plan.planned.makespan = (std::max)(plan.planned.makespan, end);
      }
      ++microbatch;
    }
  std::sort(plan.planned.visits.begin(), plan.planned.visits.end(), schedule::begins_before);
  return plan;
}

template <path_rules Rules = published_rules>
skip_plan skippipe(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                   const skip_options& options = {}) {
  return skippipe<Rules>(costs, stage_of_node, stages, options, planned_score{costs});
}

/// The search of `skippipe` without a look at what nodes and links cost, nor at collisions, as SkipPipe is compared
/// with (DT-FM with skips): every message and forward counts 1. `score` only rates the result.
template <path_rules Rules = published_rules, class Score>
skip_plan skippipe_cost_blind(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                              skip_options options, const Score& score) {
  schedule::visit_costs ones = costs;
  ones.forward.assign(ones.forward.size(), 1.0);
  ones.message.assign(ones.message.size(), 1.0);
  if (options.start_seconds < 0 && !costs.forward.empty())
    options.start_seconds = *std::max_element(costs.forward.begin(), costs.forward.end());
  options.avoid_collisions = false;
  options.exchanges = 0;
  options.final_solutions = 1;
  skip_plan plan = skippipe<Rules>(ones, stage_of_node, stages, options, planned_score{ones});
  plan.seconds = plan.searched_seconds = score(plan.paths);
  return plan;
}

}  // namespace heddle::inline v0::plan

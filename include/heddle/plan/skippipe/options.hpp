// heddle/plan/skippipe/options.hpp: options and result of a SkipPipe plan.
#pragma once

#include <heddle/plan/skippipe/way.hpp>
#include <heddle/schedule/paths.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// What `plan::skippipe` is asked for. Defaults: the published case. Units: seconds.
struct skip_options {
  int path_length = 4;        ///< stages on a way, stage 0 counted; skipped are 1 - path_length / stages of all
  int slots = 3;              ///< activations a node can hold: at most so many microbatches of a wave come to it
  int per_origin = 3;         ///< microbatches of one wave from each node of stage 0
  int copies = 1;             ///< so many of them share a way (a coarser search); divides `per_origin`
  double copy_seconds = 1;    ///< and start this much after each other
  double start_seconds = -1;  ///< between the ways of one origin; negative: as long as the origin's forward takes
  int waves = 2;              ///< the same ways again; a microbatch waits for the one of the wave before
  double wave_seconds = 2.5;  ///< and for this much per wave

  /// Nodes but for those of stage 0 get equally many visits of a wave, up to rounding, even where they have slots for
  /// more, as far as the rules let: otherwise the cheapest ways may leave a stage out, which then learns nothing. A
  /// stage that has a way goes before nodes that have none. In the published case slots leave no choice.
  bool even_visits = false;

  bool avoid_collisions = true;  ///< TC2: no two visits to a node at the same time, one of them forward
  bool exhaustive = false;       ///< lift all limits below: the least planned time there is, however long it takes

  int search_nodes = 3000;    ///< sets of constraints looked at, at most
  int way_states = 5000;      ///< partial ways of one microbatch looked at before its search goes for whole ones
  int open_nodes = 500;       ///< while so many wait, those that break TC1 are dropped
  int stage_solutions = 32;   ///< so many with balanced stages are collected before nodes are looked at
  int final_solutions = 8;    ///< so many that satisfy all conditions end the search
  int stage_branches = 3;     ///< ways to resolve an overfull stage that are tried
  int node_branches = 2;      ///< the same for a node
  double good_enough = 0.88;  ///< of the first plan's time: ends the search
  double give_up_above = 5;   ///< worse than the best by so much: not followed further
  int exchanges = 6000;       ///< exchanges of nodes between ways that are tried behind the search; 0: none
  std::uint64_t seed = 5;     ///< of the exchanges
};

/// A SkipPipe plan.
struct skip_plan {
  schedule::path_table paths;   ///< the ways of all waves
  schedule::timetable planned;  ///< the first wave as planned: nodes do not rest, messages take what they cost
  double seconds = 0;           ///< of all waves, as `score` says
  double searched_seconds = 0;  ///< the same before nodes were exchanged between ways
  bool collision_free = false;  ///< the planned times satisfy TC2
  int searched = 0;             ///< sets of constraints looked at
};

namespace detail {

/// The agents of one wave.
inline std::vector<agent> agents_of_wave(const schedule::visit_costs& costs, std::span<const int> stage_of_node,
                                         const skip_options& o) {
  std::vector<agent> agents;
  for (int node = 0; node < static_cast<int>(stage_of_node.size()); ++node) {
    if (stage_of_node[static_cast<std::size_t>(node)] != 0) continue;
    const double apart = o.start_seconds < 0 ? costs.forward[static_cast<std::size_t>(node)] : o.start_seconds;
    for (int k = 0; k < o.per_origin / o.copies; ++k) {
      agent a{node, {}};
      for (int c = 0; c < o.copies; ++c) a.ready.push_back(k * apart + c * o.copy_seconds);
      agents.push_back(std::move(a));
    }
  }
  return agents;
}

/// All waves of these ways.
inline schedule::path_table all_waves(const std::vector<agent>& agents, const std::vector<std::vector<int>>& ways,
                                      std::span<const int> stage_of_node, int stages, const skip_options& o) {
  schedule::path_table t;
  t.stages = stages;
  t.length = o.path_length;
  t.stage_of_node.assign(stage_of_node.begin(), stage_of_node.end());
  for (int d = 0; d < o.waves; ++d)
    for (std::size_t a = 0; a < agents.size(); ++a)
      for (const double ready : agents[a].ready) {
        const int each = static_cast<int>(agents.size()) * o.copies;
        const int i = static_cast<int>(t.ready.size());
        t.way.insert(t.way.end(), ways[a].begin(), ways[a].end());
        t.ready.push_back(d * o.wave_seconds + ready);
        t.after.push_back(d == 0 ? -1 : i - each);
      }
  return t;
}

inline void require_options(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                            const skip_options& o) {
  const auto refuse = [](const char* why) {
    std::string text = "heddle: plan::skippipe: ";
    text += why;
    throw config_error(text);
  };
  if (stage_of_node.size() != costs.forward.size() ||
      costs.message.size() != costs.forward.size() * costs.forward.size())
    refuse("the costs are of another number of nodes than the assignment of nodes to stages");
  if (!costs.complete()) refuse("costs are not negative, and numbers");
  if (o.path_length < 1 || o.path_length > stages) refuse("a way has at least one stage and at most all of them");
  if (o.slots < 1 || o.per_origin < 1 || o.waves < 1) refuse("slots, microbatches and waves are at least one");
  if (o.copies < 1 || o.per_origin % o.copies != 0)
    refuse("the microbatches of an origin do not divide over ways of so many copies; change per_origin or copies");
  if (o.per_origin > o.slots)
    refuse("an origin starts more microbatches in a wave than it has slots; make waves smaller and more");
  std::vector<int> size(static_cast<std::size_t>(stages), 0);
  for (const int s : stage_of_node) {
    if (s < 0 || s >= stages) refuse("a node holds a stage that does not exist");
    ++size[static_cast<std::size_t>(s)];
  }
  for (const int n : size)
    if (n == 0) refuse("a stage is held by no node");
  const std::int64_t visits = std::int64_t{size[0]} * o.per_origin * (o.path_length - 1);
  if (visits > (static_cast<std::int64_t>(stage_of_node.size()) - size[0]) * (o.slots / o.copies * o.copies))
    refuse(
        "the microbatches of a wave make more visits than the nodes have slots; let fewer start at once, or skip more");
}

// The options with as many slots as nodes may use: all microbatches of a wave are the most.
inline skip_options with_slots_in_use(skip_options o, std::span<const int> stage_of_node) {
  const std::int64_t origins = std::count(stage_of_node.begin(), stage_of_node.end(), 0);
  o.slots = static_cast<int>((std::min)(std::int64_t{o.slots}, origins * o.per_origin));
  const auto others = static_cast<std::int64_t>(stage_of_node.size()) - origins;
  if (!o.even_visits || others == 0) return o;
  const std::int64_t ways = origins * (o.per_origin / o.copies) * (o.path_length - 1);
  o.slots = (std::min)(o.slots, static_cast<int>((ways + others - 1) / others) * o.copies);
  return o;
}

}  // namespace detail

}  // namespace heddle::inline v0::plan

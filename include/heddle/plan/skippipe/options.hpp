// heddle/plan/skippipe/options.hpp: options and result of a SkipPipe plan.
#pragma once

#include <heddle/core/config.hpp>
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

  /// All ways visit their stages in the model's order, whatever swaps the rules allow. Where no stage is skipped, losses are
  /// then those of any other schedule.
  bool in_order = false;

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
HEDDLE_INLINE std::vector<agent> agents_of_wave(const schedule::visit_costs& costs, std::span<const int> stage_of_node,
                                                const skip_options& o);

/// All waves of these ways.
HEDDLE_INLINE schedule::path_table all_waves(const std::vector<agent>& agents,
                                             const std::vector<std::vector<int>>& ways,
                                             std::span<const int> stage_of_node, int stages, const skip_options& o);

HEDDLE_INLINE void require_options(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                                   const skip_options& o);

// The options with as many slots as nodes may use: all microbatches of a wave are the most.
HEDDLE_INLINE skip_options with_slots_in_use(skip_options o, std::span<const int> stage_of_node);

}  // namespace detail

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/skippipe/options.hpp>
#endif

// heddle/plan/improve_schedule.hpp: a search that shortens schedules within memory.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/stage_cost.hpp>
#include <heddle/schedule/table.hpp>

#include <cstdint>
#include <limits>
#include <span>

namespace heddle::inline v0::plan {

/// How long a schedule is searched, and with which random numbers.
struct improve_options {
  double seconds = 10;  ///< the search ends then, or
  std::int64_t trials =
      (std::numeric_limits<std::int64_t>::max)();  ///< after so many moves: the same result on every machine
  std::uint64_t seed = 1;
};

/// What a search has found. Times in the unit of the costs.
struct improved_schedule {
  schedule::action_table table;
  double makespan = 0;
  double makespan_before = 0;
  std::int64_t trials = 0;  ///< moves that were simulated
};

/// A schedule of the same computations in another order, at most as long as the given one in simulation, usually much
/// shorter: one action after the other is moved within its rank's list, by simulated annealing. The times are those of
/// each stage, and of a message between ranks; a rank keeps at most `limit` activations, one of a stage and a
/// microbatch each. The result passes `schedule::check_table`. Begin with a table far inside the limit: GPipe's order is
/// left with more difficulty than one microbatch after the other.
/// Errors: `schedule_error` for a table that has problems, pairs, transfers or the like, or does not keep to the limit;
/// `config_error` for costs that are not one per stage, negative or infinite, or options that are not above 0.
/// Source: Kirkpatrick, Gelatt and Vecchi 1983, Science 220; the moves are ours.
[[nodiscard]] HEDDLE_INLINE improved_schedule improve_schedule(schedule::table_view table,
                                                               std::span<const schedule::stage_cost> costs, double link,
                                                               int limit, const improve_options& options = {});

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/improve_schedule.hpp>
#endif

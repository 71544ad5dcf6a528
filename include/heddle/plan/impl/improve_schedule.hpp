// heddle/plan/impl/improve_schedule.hpp: bodies of heddle/plan/improve_schedule.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/improve_schedule.hpp>
#include <heddle/schedule/check/validate.hpp>
#include <heddle/schedule/lower/reorder.hpp>
#include <heddle/sim/action_table.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace heddle::inline v0::plan {
namespace detail {

inline constexpr int farthest_move = 24;  // entries; longer moves are hardly ever taken

// Whether entry `from` of a list may stand at `to`: it passes nothing of its microbatch that it needs or that needs it.
inline bool may_move(const schedule::action* list, int from, int to, const schedule::table_view& t) {
  const schedule::action& a = list[from];
  const int step = to > from ? 1 : -1;
  for (int k = from; k != to;) {
    k += step;
    const schedule::action& b = list[k];
    if (b.microbatch != a.microbatch) continue;
    if (b.stage == a.stage || t.next(a.stage, a.microbatch) == b.stage || t.next(b.stage, a.microbatch) == a.stage)
      return false;
  }
  return true;
}

inline void move_entry(schedule::action* list, int from, int to) {
  if (from < to)
    std::rotate(list + from, list + from + 1, list + to + 1);
  else
    std::rotate(list + to, list + from, list + from + 1);
}

}  // namespace detail

HEDDLE_INLINE improved_schedule improve_schedule(schedule::table_view table,
                                                 std::span<const schedule::stage_cost> costs, double link, int limit,
                                                 const improve_options& options) {
  schedule::require_table(table, schedule::transfers::asynchronous);
  schedule::detail::require_computations(table, "improve_schedule", false);
  if (costs.size() != static_cast<std::size_t>(table.stages()))
    throw config_error(
        text_of({"heddle: improve_schedule: ", table.stages(), " stages have as many costs, not ", costs.size()}));
  const auto is_time = [](double x) { return std::isfinite(x) && x >= 0; };
  for (const schedule::stage_cost& c : costs)
    if (!is_time(c.forward) || !is_time(c.backward_input) || !is_time(c.backward_weight))
      throw config_error("heddle: improve_schedule: times of stages are finite and not negative");
  if (!is_time(link) || !(options.seconds > 0) || options.trials < 1)
    throw config_error(
        "heddle: improve_schedule: a link takes 0 or more, and a search has more than 0 seconds and trials");
  for (int r = 0; r < table.ranks(); ++r)
    if (schedule::peak_live(table, r) > limit)
      throw schedule_error(
          text_of({"heddle: improve_schedule: the table to begin with keeps ", schedule::peak_live(table, r),
                   " activations on rank ", r, ", more than the limit of ", limit}));

  const auto duration = [&](const schedule::action& a) {
    const schedule::stage_cost& c = costs[static_cast<std::size_t>(a.stage)];
    return sim::stage_times{c.forward, c.backward_input, c.backward_weight}(a);
  };
  // Ranks that would wait for each other: as long as can be.
  const auto makespan = [&](const schedule::action_table& t) {
    try {
      return sim::simulate(t, duration, sim::link_time{link}).makespan;
    } catch (const schedule_error&) {
      return (std::numeric_limits<double>::max)();
    }
  };
  double work = 0;
  for (const schedule::action& a : table.actions()) work += duration(a);
  const double mean = work / static_cast<double>((std::max<std::size_t>)(1, table.actions().size()));

  schedule::action_table now = schedule::copy(table);
  improved_schedule best{now, makespan(now), 0, 0};
  best.makespan_before = best.makespan;
  double current = best.makespan;
  std::mt19937_64 random(options.seed);
  const auto below = [&](std::int64_t n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  const auto begun = std::chrono::steady_clock::now();
  double heat = 1;  // falls from 1 to 0
  for (std::int64_t tried = 0; tried < options.trials; ++tried) {
    if (tried % 64 == 0) {
      const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      heat = 1 - static_cast<double>(tried) / static_cast<double>(options.trials);
      // A search with a number of trials cools by them alone: its result must not depend on the machine.
      if (options.trials == improve_options{}.trials) heat = 1 - passed / options.seconds;
      if (passed >= options.seconds) break;
    }
    const int rank = below(table.ranks());
    const int size = table.offset(rank + 1) - table.offset(rank);
    if (size < 2) continue;
    const int from = below(size);
    const int to = from + below(2 * detail::farthest_move + 1) - detail::farthest_move;
    schedule::action* const list = now.actions.data() + table.offset(rank);
    if (to < 0 || to >= size || to == from || !detail::may_move(list, from, to, table)) continue;
    detail::move_entry(list, from, to);
    double moved = (std::numeric_limits<double>::max)();
    if (schedule::peak_live(now, rank) <= limit) {
      moved = makespan(now);
      ++best.trials;
    }
    const double chance = static_cast<double>(random() >> 11) * 0x1p-53;
    if (moved > current && !(chance < std::exp((current - moved) / (0.5 * mean * heat + 1e-9 * mean)))) {
      detail::move_entry(list, to, from);
      continue;
    }
    current = moved;
    if (current < best.makespan) {
      best.makespan = current;
      best.table = now;
    }
  }
  schedule::require_table(best.table, schedule::transfers::asynchronous);
  return best;
}

}  // namespace heddle::inline v0::plan

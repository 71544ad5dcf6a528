// heddle/schedule/check/validate.hpp: validates tables: complete, ordered, no deadlock.
#pragma once

#include <heddle/schedule/check/report.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/schedule/check/validate_execution.hpp>
#include <heddle/schedule/check/validate_lists.hpp>

#include <cstdint>

namespace heddle::inline v0::schedule {
namespace detail {

// The way of each microbatch: one beginning, from which `next` leads over all its stages, and `previous` back.
constexpr report check_paths(const table_view& t) {
  report found{};
  for (int i = 0; i < t.microbatches() && found.ok(); ++i) {
    int begin = -1;
    int stages = 0;
    for (int s = 0; s < t.stages() && found.ok(); ++s) {
      const int next = t.next(s, i);
      const int previous = t.previous(s, i);
      found.where = action{action_kind::forward, s, i, -1};
      if (next == not_on_path && previous == not_on_path) continue;
      const bool exists = next >= -1 && next < t.stages() && previous >= -1 && previous < t.stages();
      if (!exists || (next >= 0 && t.previous(next, i) != s) || (previous >= 0 && t.next(previous, i) != s))
        found.what = problem::broken_path;
      if (t.chains() > 1 && (i < t.first_microbatch(t.chain_of(s)) || i >= t.first_microbatch(t.chain_of(s) + 1)))
        found.what = problem::not_its_microbatch;
      ++stages;
      if (previous != -1) continue;
      if (begin >= 0) found.what = problem::broken_path;
      begin = s;
    }
    if (!found.ok()) break;
    found.where = action{action_kind::forward, begin, i, -1};
    for (int s = begin; s >= 0; s = t.next(s, i)) --stages;
    if (stages != 0 || begin < 0) found.what = problem::broken_path;
  }
  if (found.ok()) found.where = {};
  return found;
}

constexpr report check_shape(const table_view& t) {
  report found{};
  if (t.ranks() < 1 || t.stages() < 1 || t.microbatches() < 1 || t.chains() < 1) found.what = problem::malformed;
  if (found.ok() && (t.stages() % t.chains() != 0 || t.microbatches() < t.chains() || !t.paths_fit()))
    found.what = problem::malformed;
  if (!t.lists_fit()) found.what = problem::malformed;
  for (int r = 0; r < t.ranks() && found.ok(); ++r)
    if (t.offset(0) != 0 || t.offset(r + 1) < t.offset(r)) found.what = problem::malformed;
  if (std::int64_t{t.stages()} * t.microbatches() > most_cells) found.what = problem::too_large;
  for (int s = 0; s < t.stages() && found.ok(); ++s)
    if (t.rank_of(s) < 0 || t.rank_of(s) >= t.ranks()) {
      found.what = problem::malformed;
      found.where.stage = s;
    }
  return found.ok() && t.has_paths() ? check_paths(t) : found;
}

// What stands wrong on one rank says more than what is then missing on another.
constexpr report graver(const report& a, const report& b) noexcept {
  return a.ok() || (a.what == problem::missing && !b.ok() && b.what != problem::missing) ? b : a;
}

// The parts of `check_table`, for tables so large that one constant expression may not do all. `check_execution` and
// `check_messages` need sound lists.
constexpr report check_lists(const table_view& t, const table_uses& uses) {
  report found{};
  list_check lists(t, uses);
  for (int r = 0; r < t.ranks(); ++r) found = graver(found, lists.run(r));
  return found;
}
constexpr report check_execution(const table_view& t, transfers mode) {
  return execution(t, mode).run();
}

}  // namespace detail

/// The first problem of a table, lowered or not.
/// - Each stage on one rank; F, then B or I and W, once per stage and microbatch; a chain's stages run its own
///   microbatches, and with paths each microbatch goes one way over its stages; forward-only tables have F alone.
/// - The two parts of an overlapped pair are computations that do not need each other and add to different gradients.
/// - OFFLOAD stands behind F, RELOAD behind OFFLOAD, RECOMPUTE behind both, all before the first backward part; what
///   was offloaded is reloaded. Of a stage with UNSHARD or RESHARD, F, B, I and RECOMPUTE stand between the two, and it
///   ends resharded. REDUCE_GRAD follows the last B or W of its stage, OPTIM follows REDUCE_GRAD.
/// - With transfers placed: received before used, sent after computed, every send with its receive, one order per pair
///   of ranks.
/// - The lists, run in order, finish where transfers behave as `mode` says. The strictest, rendezvous, is the default:
///   what passes it passes buffered and grouped ones, and what passes either passes asynchronous ones.
[[nodiscard]] constexpr report check_table(table_view table, transfers mode = transfers::rendezvous) {
  report found = detail::check_shape(table);
  if (!found.ok()) return found;
  const detail::table_uses uses = detail::uses_of(table);
  found = detail::check_lists(table, uses);
  if (!found.ok()) return found;
  // What comes to its end where transfers block has its messages in order.
  if (mode == transfers::rendezvous) found = detail::check_execution(table, mode);
  if (uses.transfers && (mode != transfers::rendezvous || !found.ok())) {
    const report messages = detail::check_messages(table);
    if (!messages.ok()) return messages;
  }
  return mode == transfers::rendezvous ? found : detail::check_execution(table, mode);
}

/// Refuses a table with a problem. Errors: `schedule_error` naming rank, position, action and microbatch.
constexpr void require_table(table_view table, transfers mode = transfers::rendezvous) {
  const report found = check_table(table, mode);
  if (!found.ok()) throw schedule_error(to_string(found));
}

}  // namespace heddle::inline v0::schedule

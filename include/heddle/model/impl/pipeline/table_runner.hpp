// heddle/model/impl/pipeline/table_runner.hpp: bodies of heddle/model/pipeline/table_runner.hpp.
#pragma once

#include <heddle/model/pipeline/table_runner.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model::detail {

HEDDLE_INLINE void require_runnable(schedule::plan_view plan, int ranks, bool forward_only) {
  const schedule::table_view table = plan.table;
  if (table.ranks() != ranks)
    throw schedule_error("heddle: the schedule's table is for " + std::to_string(table.ranks()) +
                         " pipeline ranks, the pipeline has " + std::to_string(ranks));
  if (!plan.storage.fits(table))
    throw schedule_error("heddle: the plan's storage is not of its table; make both with schedule::make_plan");
  if (!table.has_transfers() && schedule::sends(table) > 0)
    throw schedule_error(
        "heddle: the plan's table has no sends and receives, but stages on several ranks; lower it with "
        "schedule::lower, or let schedule::make_plan do so");
  if (forward_only && !table.forward_only())
    throw schedule_error("heddle: the schedule's table has backwards, the stages are forward-only");
}

HEDDLE_INLINE void refuse_stage(int rank, int stage) {
  throw schedule_error("heddle: pipeline rank " + std::to_string(rank) + " is to run stage " + std::to_string(stage) +
                       ", which it does not hold");
}
HEDDLE_INLINE void refuse_elements(const schedule::action& a, std::int64_t elements, std::int64_t largest) {
  throw schedule_error("heddle: microbatch " + std::to_string(a.microbatch) + " needs " + std::to_string(elements) +
                       " elements between stages, the executor has room for " + std::to_string(largest) +
                       "; give it more max_samples");
}
HEDDLE_INLINE void refuse_batches(int expected, std::size_t given) {
  throw schedule_error("heddle: the schedule's table is for " + std::to_string(expected) + " microbatches, got " +
                       std::to_string(given));
}
HEDDLE_INLINE void refuse_queues(int rank) {
  throw schedule_error("heddle: the stages of pipeline rank " + std::to_string(rank) +
                       " work in the order of different queues; give the stages of one rank the same backend");
}

HEDDLE_INLINE event run_record::describe(activity kind, const char* name, const schedule::action& a) const noexcept {
  event e;
  e.kind = kind;
  e.name = name;
  e.rank = world_rank(rank);
  e.step = step;
  e.stage = a.stage;
  e.microbatch = a.microbatch;
  e.peer = a.peer < 0 ? -1 : world_rank(a.peer);
  return e;
}

HEDDLE_INLINE event run_record::describe(const schedule::action& computation) const noexcept {
  using schedule::action_kind;
  switch (computation.kind) {
    case action_kind::forward:
      return describe(activity::forward, "forward", computation);
    case action_kind::backward:
      return describe(activity::backward, "backward", computation);
    case action_kind::backward_input:
      return describe(activity::backward_input, "backward input", computation);
    default:
      return describe(activity::backward_weight, "backward weight", computation);
  }
}

HEDDLE_INLINE std::uint64_t run_record::flow_of(const schedule::action& a) const noexcept {
  const bool up = tag_of(a.kind) == 0;
  const int sender = schedule::is_recv(a.kind) ? schedule::counterpart(a, table).stage : a.stage;
  std::uint64_t id = static_cast<std::uint64_t>(step + 1);
  id = id * 65536 + static_cast<std::uint64_t>(world_rank(0));
  id = id * static_cast<std::uint64_t>(table.stages()) + static_cast<std::uint64_t>(sender);
  id = id * 2 + (up ? 0u : 1u);
  return id * static_cast<std::uint64_t>(table.microbatches()) + static_cast<std::uint64_t>(a.microbatch) + 1;
}

}  // namespace heddle::inline v0::model::detail

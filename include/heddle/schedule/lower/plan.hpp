// heddle/schedule/lower/plan.hpp: input of an executor: lowered table and storage.
#pragma once

#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/lower/storage.hpp>

namespace heddle::inline v0::schedule {

/// A lowered, checked table with its storage, not owned. An executor on pipeline rank r walks
/// `for (int k = table.offset(r); k < table.offset(r + 1); ++k)` with `a = table[k]` and `at = storage[k]`:
/// - F: wait for the receive into buffer `at.input` (if any), run the stage's forward into slot `at.saved` and buffer
///   `at.output` (if any);
/// - B, I: the same with the stage's backward (input gradient) and slot `at.saved`; W: weight gradient from `at.saved`;
/// - RECV_F, RECV_B: start receiving from pipeline rank `a.peer` into buffer `at.input` and go on (to wait here is
///   correct, too: the table has passed `transfers::rendezvous`; but receives stand early, so the rank would idle);
/// - SEND_F, SEND_B: start sending buffer `at.output` to `a.peer`, then wait for the send `storage.sends_in_flight()`
///   before it, so that its buffer may be used again;
/// - two computations of which the first has `overlaps_next`: both at the same time, or one after the other in either
///   order; begin when both have their inputs; go on when both have ended. They share neither slots nor buffers;
/// - REDUCE_GRAD: the gradients of stage `a.stage` are complete on this rank; OPTIM: update its weights;
/// - UNSHARD, RESHARD: gather the weights of stage `a.stage`, drop them again; RECOMPUTE, OFFLOAD, RELOAD: of the
///   activations in slot `at.saved`, which stays theirs.
/// At the end wait for the sends still under way. Between two ranks the messages are in one order on both sides, so
/// transports that match by order need no tags. A buffer holds one boundary tensor; a rank needs `storage.buffers(r)`
/// of them, a stage `storage.slots(s)` slots for saved activations.
struct plan_view {
  table_view table;
  storage_view storage;
};

/// A plan made at run time.
struct plan {
  action_table table;
  schedule::storage memory;

  constexpr plan_view view() const noexcept { return {table, memory}; }
  constexpr operator plan_view() const noexcept { return view(); }
};

/// The plan of a static schedule, lowered by these passes or the usual ones: an empty object; the data are constants.
template <schedule_policy When, int Ranks, int SendsInFlight = 1, lowering_pass... Passes>
struct static_plan {
  static constexpr plan_view view() noexcept {
    if constexpr (detail::require_ranks<When, Ranks, Passes...>())
      return {lowered_to_run_of<When, Ranks, Passes...>, storage_of<When, Ranks, SendsInFlight, Passes...>};
    else
      return {};
  }
  constexpr operator plan_view() const noexcept { return view(); }
};

/// Lowers the table, checks it for blocking transfers and assigns storage.
/// Errors: `schedule_error` naming rank, position, action and microbatch.
constexpr plan make_plan(table_view table, int sends_in_flight = 1) {
  require_table(table, transfers::buffered);
  plan p;
  p.table = lowered_to_run(table);
  require_table(p.table, transfers::rendezvous);
  p.memory = assign_storage(p.table, sends_in_flight);
  return p;
}

/// The plan of a schedule on a mesh: constants where both are static (a mistake does not compile), made here where not.
/// `passes` lower it here, as in `lower(table, passes...)`; without any, the usual ones do. See `static_plan` for passes
/// that the compiler runs.
template <schedule_policy When, mesh_like Mesh, lowering_pass... Passes>
constexpr auto plan_for(const When& when, const Mesh& mesh, const Passes&... passes) {
  if constexpr (When::is_static && pipeline_ranks<Mesh> != dynamic && sizeof...(Passes) == 0) {
    return static_plan<When, pipeline_ranks<Mesh>>{};
  } else {
    const action_table table = make_table(when, mesh.template extent_or_one<pp>());
    if constexpr (sizeof...(Passes) == 0)
      return make_plan(table);
    else
      return make_plan(lower(table.view(), passes...));
  }
}

}  // namespace heddle::inline v0::schedule

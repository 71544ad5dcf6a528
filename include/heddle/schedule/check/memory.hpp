// heddle/schedule/check/memory.hpp: peak bytes of each rank, and whether they fit.
#pragma once

#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/lower/storage.hpp>
#include <heddle/schedule/table.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <string>

namespace heddle::inline v0::schedule {

/// What knows the memory of stages. Units: bytes, of one rank. `activation_bytes(stage)` is what a forward keeps of one
/// microbatch for the backward. Where a model also has them, these are counted, too:
/// - `weight_input_bytes(stage)`: what W needs when I has run (all of that, if not given; more, where I adds to it);
/// - `recompute_bytes(stage)`: what a forward keeps of a microbatch whose activations the table recomputes (nothing);
/// - `offload_bytes(stage)`: what OFFLOAD takes away of a microbatch and RELOAD brings back (all that is kept, and no
///   more);
/// - `resident_bytes(stage)`: weights, gradients, optimizer state: there all the time (nothing);
/// - `gathered_bytes(stage)`: the stage's weights between UNSHARD and RESHARD (nothing);
/// - `boundary_bytes()`: one boundary buffer, where the storage of the table is given as well (nothing).
template <class M>
concept memory_model = requires(const M model, int stage) {
  { model.activation_bytes(stage) } -> std::convertible_to<std::int64_t>;
};

/// The most that a rank needs, and the action of its list at which it does. Units: bytes.
struct memory_need {
  std::int64_t bytes = 0;
  int rank = -1;
  int position = -1;
  action where{};
};

/// Activations of a transformer's layers in half precision, nothing recomputed: s b h (34 + 5 a s / h) bytes per layer,
/// of which W needs 32 s b h. A stage has `layers` layers.
/// Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 1; the part of W: arXiv:2401.10241, table 1.
struct transformer_memory {
  std::int64_t samples = 1, sequence = 1;
  std::int64_t hidden = 1, heads = 1, layers = 1;

  constexpr std::int64_t activation_bytes(int) const noexcept {
    return layers * samples * sequence * (34 * hidden + 5 * heads * sequence);
  }
  constexpr std::int64_t weight_input_bytes(int) const noexcept { return layers * samples * sequence * 32 * hidden; }
  constexpr std::int64_t recompute_bytes(int) const noexcept { return layers * boundary_bytes(); }
  constexpr std::int64_t boundary_bytes() const noexcept { return 2 * samples * sequence * hidden; }
};

namespace detail {

// Carries the model into the compiler's message.
template <bool Ok, class Model>
inline constexpr bool is_memory_model = Ok;
// One error for a model that cannot be asked; a member that is not const would be there and not counted.
template <class M>
constexpr bool memory_model_checked() {
  static_assert(is_memory_model<memory_model<M>, M>,
                "heddle: a memory model needs `std::int64_t activation_bytes(int stage) const`, constexpr where the "
                "compiler is to count: bytes that a forward keeps of one microbatch");
  if constexpr (memory_model<M>) {
    constexpr bool all_const =
        !((requires(M& m) { m.weight_input_bytes(0); } && !requires(const M& m) { m.weight_input_bytes(0); }) ||
          (requires(M& m) { m.recompute_bytes(0); } && !requires(const M& m) { m.recompute_bytes(0); }) ||
          (requires(M& m) { m.offload_bytes(0); } && !requires(const M& m) { m.offload_bytes(0); }) ||
          (requires(M& m) { m.resident_bytes(0); } && !requires(const M& m) { m.resident_bytes(0); }) ||
          (requires(M& m) { m.gathered_bytes(0); } && !requires(const M& m) { m.gathered_bytes(0); }) ||
          (requires(M& m) { m.boundary_bytes(); } && !requires(const M& m) { m.boundary_bytes(); }));
    static_assert(is_memory_model<all_const, M>,
                  "heddle: the members of a memory model are const: weight_input_bytes(stage), recompute_bytes(stage), "
                  "offload_bytes(stage), resident_bytes(stage), gathered_bytes(stage) and boundary_bytes() that are "
                  "not would not be counted");
  }
  return memory_model<M>;
}
template <class M>
constexpr std::int64_t activation_bytes(const M& model, int stage) {
  if constexpr (memory_model_checked<M>())
    return model.activation_bytes(stage);
  else
    return 0;
}
constexpr std::int64_t weight_input_bytes(const auto& model, int stage) {
  if constexpr (requires { model.weight_input_bytes(stage); })
    return model.weight_input_bytes(stage);
  else
    return detail::activation_bytes(model, stage);
}
constexpr std::int64_t recompute_bytes(const auto& model, int stage) {
  if constexpr (requires { model.recompute_bytes(stage); })
    return model.recompute_bytes(stage);
  else
    return 0;
}
constexpr std::int64_t offload_bytes(const auto& model, int stage, bool recomputed) {
  const std::int64_t kept = recomputed ? recompute_bytes(model, stage) : detail::activation_bytes(model, stage);
  if constexpr (requires { model.offload_bytes(stage); })
    return (std::min)(kept, static_cast<std::int64_t>(model.offload_bytes(stage)));
  else
    return kept;
}
constexpr std::int64_t resident_bytes(const auto& model, int stage) {
  if constexpr (requires { model.resident_bytes(stage); })
    return model.resident_bytes(stage);
  else
    return 0;
}
constexpr std::int64_t gathered_bytes(const auto& model, int stage) {
  if constexpr (requires { model.gathered_bytes(stage); })
    return model.gathered_bytes(stage);
  else
    return 0;
}

// What an action takes when it begins (`taken`) and gives back when it ends.
struct memory_change {
  std::int64_t taken = 0;
  std::int64_t given = 0;
};

// `recomputes` has a mark for each stage and microbatch that the table recomputes, or is null.
template <class M>
constexpr memory_change change_of(const action& a, const table_view& t, const M& model, const bool* recomputes) {
  const std::int64_t saved = is_per_stage(a.kind) ? 0 : detail::activation_bytes(model, a.stage);
  switch (a.kind) {
    case action_kind::forward: {
      const bool later = recomputes != nullptr && recomputes[a.stage * t.microbatches() + a.microbatch];
      return {saved, t.forward_only() ? saved : later ? saved - recompute_bytes(model, a.stage) : 0};
    }
    case action_kind::recompute:
      return {saved - recompute_bytes(model, a.stage), 0};
    case action_kind::backward:
      return {0, saved};
    case action_kind::backward_input: {
      const std::int64_t rest = weight_input_bytes(model, a.stage);
      return {(std::max)(rest - saved, std::int64_t{0}), (std::max)(saved - rest, std::int64_t{0})};
    }
    case action_kind::backward_weight:
      return {0, weight_input_bytes(model, a.stage)};
    case action_kind::unshard:
      return {gathered_bytes(model, a.stage), 0};
    case action_kind::reshard:
      return {0, gathered_bytes(model, a.stage)};
    default:
      return {};
  }
}

template <class M>
constexpr memory_need peak_of_rank(const table_view& t, const M& model, int rank, std::int64_t always,
                                   const bool* recomputes) {
  std::int64_t now = always;
  for (int s = 0; s < t.stages(); ++s)
    if (t.rank_of(s) == rank) now += resident_bytes(model, s);
  memory_need need{now, rank, -1, {}};
  std::int64_t pair = 0;          // given back when both parts of a pair have ended
  std::int64_t being_stored = 0;  // by the OFFLOAD under way
  action stored{};
  for (int k = t.offset(rank); k < t.offset(rank + 1); ++k) {
    const action& a = t[k];
    if (is_of_saved(a.kind) && a.kind != action_kind::recompute) {
      const bool later = recomputes != nullptr && recomputes[a.stage * t.microbatches() + a.microbatch];
      const std::int64_t moved = offload_bytes(model, a.stage, later);
      if (a.kind == action_kind::offload) {
        now -= being_stored;
        being_stored = moved;
        stored = a;
      } else if (being_stored > 0 && stored.stage == a.stage && stored.microbatch == a.microbatch) {
        being_stored = 0;  // they are still there
      } else {
        now += moved;
      }
    }
    const memory_change change = change_of(a, t, model, recomputes);
    now += change.taken;
    if (now > need.bytes) need = {now, rank, k - t.offset(rank), a};
    pair += change.given;
    if (a.overlaps_next) continue;
    now -= pair;
    pair = 0;
  }
  return need;
}

template <class M>
constexpr memory_need peak_memory(const table_view& t, const M& model, const storage_view* storage) {
  const int cells = t.has(action_kind::recompute) ? t.stages() * t.microbatches() : 0;
  const scratch<bool> recomputes(cells);
  if (cells > 0)
    for (const action& a : t.actions())
      if (a.kind == action_kind::recompute) recomputes[a.stage * t.microbatches() + a.microbatch] = true;
  memory_need most{-1};
  for (int r = 0; r < t.ranks(); ++r) {
    std::int64_t always = 0;
    if constexpr (requires { model.boundary_bytes(); })
      if (storage != nullptr) always = storage->buffers(r) * static_cast<std::int64_t>(model.boundary_bytes());
    const memory_need need = peak_of_rank(t, model, r, always, cells > 0 ? recomputes.data() : nullptr);
    if (need.bytes > most.bytes) most = need;
  }
  return most;
}

}  // namespace detail

/// The most that any rank of a valid table needs. A forward takes its activations when it begins; I gives back what W
/// does not need, or takes what it adds for W; W or B give back the rest, RECOMPUTE takes what the forward has dropped;
/// the parts of a pair give back when both have ended. What OFFLOAD moves is there until the next OFFLOAD of the rank
/// begins, what RELOAD moves from where it stands, or still if no other OFFLOAD has begun.
template <class M>
constexpr memory_need peak_memory(table_view table, const M& model) {
  return detail::peak_memory(table, model, nullptr);
}
/// The same with the boundary buffers of the plan.
template <class M>
constexpr memory_need peak_memory(plan_view plan, const M& model) {
  return detail::peak_memory(plan.table, model, &plan.storage);
}

/// What one rank needs. Units: bytes.
template <class M>
constexpr std::int64_t peak_bytes(table_view table, const M& model, int rank) {
  const int cells = table.stages() * table.microbatches();
  const detail::scratch<bool> recomputes(cells);
  for (const action& a : table.list(rank))
    if (a.kind == action_kind::recompute) recomputes[a.stage * table.microbatches() + a.microbatch] = true;
  return detail::peak_of_rank(table, model, rank, 0, recomputes.data()).bytes;
}

/// Whether a budget of memory is kept: `ok()`, and which rank needs how much at which action. Units: bytes.
struct memory_report : memory_need {
  std::int64_t allowed = 0;

  constexpr bool ok() const noexcept { return bytes <= allowed; }
};

/// One line that names rank, bytes needed and allowed, and what to change.
inline std::string to_string(const memory_report& r) {
  std::string text = "heddle: rank " + std::to_string(r.rank) + " needs " + std::to_string(r.bytes) + " bytes";
  if (r.position >= 0) text += " at position " + std::to_string(r.position) + " (" + to_text(r.where) + ")";
  text += ", " + std::to_string(r.allowed);
  text += r.ok() ? " are allowed"
                 : " are allowed; take a schedule that keeps fewer microbatches, smaller ones, or recompute or offload "
                   "activations";
  return text;
}

/// Whether every rank manages with so many bytes, boundary buffers included.
template <class M>
[[nodiscard]] constexpr memory_report check_memory(plan_view plan, const M& model, std::int64_t allowed) {
  return {peak_memory(plan, model), allowed};
}
/// The same of a table, as it runs: lowered, if it has no transfers yet. Positions are those of the lowered lists, as in
/// `require_memory<When, Mesh, Model, Bytes>()`. Errors: `schedule_error` if the table cannot be lowered.
template <class M>
[[nodiscard]] constexpr memory_report check_memory(table_view table, const M& model, std::int64_t allowed) {
  const action_table lowered = lowered_to_run(table);
  const storage buffers = assign_storage(lowered);
  return check_memory(plan_view{lowered, buffers}, model, allowed);
}

/// Refuses what needs more. Errors: `schedule_error` naming rank, position, action, bytes needed and allowed.
template <class M>
constexpr void require_memory(plan_view plan, const M& model, std::int64_t allowed) {
  if (const memory_report found = check_memory(plan, model, allowed); !found.ok())
    throw schedule_error(to_string(found));
}
template <class M>
constexpr void require_memory(table_view table, const M& model, std::int64_t allowed) {
  if (const memory_report found = check_memory(table, model, allowed); !found.ok())
    throw schedule_error(to_string(found));
}

/// The most that any rank needs for a static schedule, lowered by these passes or the usual ones, with its boundary
/// buffers. A constexpr object.
template <schedule_policy When, int Ranks, class Model, lowering_pass... Passes>
inline constexpr memory_need memory_of = [] {
  constexpr storage_view storage = storage_of<When, Ranks, 1, Passes...>;
  return detail::peak_memory(lowered_to_run_of<When, Ranks, Passes...>, Model{}, &storage);
}();

/// Whether every rank of this mesh manages the schedule with so many bytes. `Model` is default-constructible; `Passes`
/// lower the schedule, the usual ones if there are none: `passes::recompute<>` says what recomputation saves.
template <schedule_policy When, mesh_like Mesh, class Model, std::int64_t Bytes, lowering_pass... Passes>
inline constexpr bool fits = [] {
  if constexpr (detail::known_to_the_compiler<When, Mesh>())
    return memory_of<When, pipeline_ranks<Mesh>, Model, Passes...>.bytes <= Bytes;
  else
    return false;
}();

/// Carries what is needed and allowed into the compiler's message: `at::rank<0>, at::needed<400>, at::allowed<399>, ...`.
/// Units: bytes.
template <class... Words>
struct bytes_of_rank;
template <class Rank, std::int64_t Needed, std::int64_t Allowed, class... Where>
struct bytes_of_rank<Rank, at::needed<Needed>, at::allowed<Allowed>, Where...> {
  static constexpr bool enough = Needed <= Allowed;
};

namespace detail {
template <class List>
struct bytes_words;
template <class... Ts>
struct bytes_words<type_list<Ts...>> {
  using type = bytes_of_rank<Ts...>;
};
template <memory_need Need, std::int64_t Allowed>
using bytes_in =
    typename bytes_words<typename words<type_list<at::rank<Need.rank>, at::needed<Need.bytes>, at::allowed<Allowed>>,
                                        typename place_words<-1, Need.position, Need.where.kind, Need.where.stage,
                                                             Need.where.microbatch>::list>::list>::type;
}  // namespace detail

/// Does not compile if the schedule is wrong on this mesh or a rank needs more bytes; the message names both numbers.
template <schedule_policy When, mesh_like Mesh, class Model, std::int64_t Bytes, lowering_pass... Passes>
consteval bool require_memory() {
  if constexpr (detail::known_to_the_compiler<When, Mesh>()) {
    if constexpr (detail::require_ranks<When, pipeline_ranks<Mesh>, Passes...>()) {
      constexpr memory_need need = memory_of<When, pipeline_ranks<Mesh>, Model, Passes...>;
      static_assert(
          detail::bytes_in<need, Bytes>::enough,
          "heddle: the schedule needs more memory than is allowed; `bytes_of_rank` names the rank, bytes needed and "
          "allowed, and the place in its list; take a schedule that keeps fewer microbatches, smaller ones, or "
          "recompute or offload activations");
    }
  }
  return true;
}

}  // namespace heddle::inline v0::schedule

// heddle/schedule/lower.hpp: from computations to what an executor runs: transfers placed, gradients reduced.
#pragma once

#include <heddle/schedule/scratch.hpp>
#include <heddle/schedule/table.hpp>

#include <array>
#include <cstdint>

namespace heddle::inline v0::schedule {

/// Which lowering passes run.
struct lowering {
  bool merge_backward = true;    ///< I directly followed by W of the same stage and microbatch becomes B,
                                 ///< unless the input gradient goes to another rank, which need not wait for W
  bool place_transfers = true;   ///< sends and receives between stages on different ranks
  bool reduce_gradients = true;  ///< REDUCE_GRAD after the last B or W of each stage
};

namespace detail {

// The next computation of a list and how many entries it covers: two where I and W merge.
struct next_action {
  action what;
  int entries = 1;
};

// The send that follows a computation, if its consumer lives on another rank; stage -1 if not.
constexpr action send_after(const action& a, const table_view& t) noexcept {
  const bool up = a.kind == action_kind::forward;
  if (!up && a.kind != action_kind::backward && a.kind != action_kind::backward_input) return {};
  const int other = up ? t.next(a.stage, a.microbatch) : t.previous(a.stage, a.microbatch);
  if (other < 0 || t.rank_of(other) == t.rank_of(a.stage)) return {};
  return {up ? action_kind::send_forward : action_kind::send_backward, a.stage, a.microbatch, t.rank_of(other)};
}

// I and W stay apart where the input gradient is sent on: the next rank need not wait for W.
constexpr next_action next_of(const action* at, const action* end, const lowering& passes,
                              const table_view& t) noexcept {
  next_action n{*at, 1};
  if (passes.merge_backward && at->kind == action_kind::backward_input && at + 1 != end &&
      at[1].kind == action_kind::backward_weight && at[1].stage == at->stage && at[1].microbatch == at->microbatch &&
      !(passes.place_transfers && send_after(*at, t).stage >= 0)) {
    n.what.kind = action_kind::backward;
    n.entries = 2;
  }
  return n;
}

// First pass: offsets of the lowered lists.
constexpr void lowered_offsets(const table_view& t, const lowering& passes, int* offsets) {
  const bool reduce = passes.reduce_gradients && !t.forward_only() && !t.has(action_kind::reduce_gradient);
  for (int r = 0; r <= t.ranks(); ++r) offsets[r] = 0;
  for (int r = 0; r < t.ranks(); ++r) {
    const action* at = t.actions().data() + t.offset(r);
    const action* const end = t.actions().data() + t.offset(r + 1);
    while (at != end) {
      const next_action n = next_of(at, end, passes, t);
      ++offsets[r + 1];
      if (passes.place_transfers) {
        const action send = send_after(n.what, t);
        if (send.stage >= 0) {
          ++offsets[r + 1];
          ++offsets[send.peer + 1];
        }
      }
      at += n.entries;
    }
  }
  if (reduce)
    for (int s = 0; s < t.stages(); ++s) ++offsets[t.rank_of(s) + 1];
  for (int r = 0; r < t.ranks(); ++r) offsets[r + 1] += offsets[r];
}

// Second pass: fills the lists. False if the table cannot be executed in order (validate says why).
constexpr bool lower_into(const table_view& t, const lowering& passes, const int* offsets, action* out) {
  constexpr std::uint8_t forward_done = 1, gradient_done = 2, input_gradient_done = 4;
  const bool reduce = passes.reduce_gradients && !t.forward_only() && !t.has(action_kind::reduce_gradient);
  const int m = t.microbatches();
  const action* const in = t.actions().data();
  const scratch<std::uint8_t> done_memory(t.stages() * m);
  const scratch<int> left_memory(t.stages());
  const scratch<int> head_memory(t.ranks());
  const scratch<int> tail_memory(t.ranks());
  std::uint8_t* const done = done_memory.data();
  int* const left = left_memory.data();
  int* const head = head_memory.data();
  int* const tail = tail_memory.data();
  for (int s = 0; s < t.stages(); ++s) left[s] = t.microbatches_of(s);
  for (int r = 0; r < t.ranks(); ++r) {
    head[r] = t.offset(r);
    tail[r] = offsets[r];
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (int r = 0; r < t.ranks(); ++r) {
      const int end = t.offset(r + 1);
      if (head[r] == end) continue;
      const next_action n = next_of(in + head[r], in + end, passes, t);
      const action& a = n.what;
      const int here = a.stage * m + a.microbatch;
      if (a.kind == action_kind::forward) {
        const int before = t.previous(a.stage, a.microbatch);
        if (before >= 0 && !(done[before * m + a.microbatch] & forward_done)) continue;
        done[here] = static_cast<std::uint8_t>(done[here] | forward_done);
      } else if (a.kind == action_kind::backward || a.kind == action_kind::backward_input) {
        const int after = t.next(a.stage, a.microbatch);
        if (!(done[here] & forward_done)) continue;
        if (after >= 0 && !(done[after * m + a.microbatch] & input_gradient_done)) continue;
        done[here] = static_cast<std::uint8_t>(done[here] | input_gradient_done);
      } else if (a.kind == action_kind::backward_weight) {
        if (!(done[here] & input_gradient_done)) continue;
      }
      out[tail[r]++] = a;
      if (passes.place_transfers) {
        const action send = send_after(a, t);
        if (send.stage >= 0) {
          out[tail[r]++] = send;
          out[tail[send.peer]++] = counterpart(send, t);
        }
      }
      if ((a.kind == action_kind::backward || a.kind == action_kind::backward_weight) &&
          !(done[here] & gradient_done)) {
        done[here] = static_cast<std::uint8_t>(done[here] | gradient_done);
        if (--left[a.stage] == 0 && reduce) {
          out[tail[r]++] = action{action_kind::reduce_gradient, a.stage, -1, -1};
        }
      }
      head[r] += n.entries;
      progress = true;
    }
  }
  for (int r = 0; r < t.ranks(); ++r)
    if (head[r] != t.offset(r + 1)) return false;
  return true;
}

template <class When, int Ranks>
constexpr auto static_lowered() {
  constexpr table_view t = table_of<When, Ranks>;
  if constexpr (t.has_transfers()) {
    return table_of<When, Ranks>;  // written with its transfers
  } else {
    constexpr auto offsets = [] {
      std::array<int, static_cast<std::size_t>(Ranks) + 1> o{};
      lowered_offsets(table_of<When, Ranks>.view(), lowering{}, o.data());
      return o;
    }();
    static_action_table<static_cast<std::size_t>(offsets[Ranks]), static_cast<std::size_t>(Ranks),
                        static_cast<std::size_t>(t.stages())>
        lowered{};
    lowered.offsets = offsets;
    lowered.rank_of_stage = table_of<When, Ranks>.rank_of_stage;
    lowered.microbatches = t.microbatches();
    lowered.form = t.form();
    if (!lower_into(t, lowering{}, lowered.offsets.data(), lowered.actions.data()))
      throw schedule_error("heddle: the schedule cannot be executed in order; schedule::validate says why");
    return lowered;
  }
}

}  // namespace detail

/// Places what an executor needs around the computations of a valid table.
/// Ranks are walked round-robin and a computation is appended once its inputs have been; behind one whose consumer is
/// on another rank goes the send and, at the same moment, the receive to the consumer's list. A receive then stands as
/// early as the global order allows, so that it can be started before unrelated computations, and there is one global
/// order of all actions: the table completes even where sends and receives block. REDUCE_GRAD of a stage follows its
/// last B or W.
/// Errors: `schedule_error` if the table has transfers already or cannot be executed in order.
/// Source: the `_add_send_recv` pass of torch.distributed.pipelining (described, not copied).
constexpr action_table lower(table_view table, lowering passes = {}) {
  if (passes.place_transfers && table.has_transfers())
    throw schedule_error("heddle: the table to lower has sends and receives already");
  action_table lowered = like(table);
  detail::lowered_offsets(table, passes, lowered.offsets.data());
  lowered.actions.assign(static_cast<std::size_t>(lowered.offsets.back()), action{});
  if (!detail::lower_into(table, passes, lowered.offsets.data(), lowered.actions.data()))
    throw schedule_error("heddle: the schedule cannot be executed in order; schedule::validate says why");
  return lowered;
}

/// The lowered table of a static schedule, as a constexpr object of exact size.
template <schedule_policy When, int Ranks>
  requires(When::is_static && Ranks > 0)
inline constexpr auto lowered_of = detail::static_lowered<When, Ranks>();

}  // namespace heddle::inline v0::schedule

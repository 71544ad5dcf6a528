// heddle/schedule/lower/lower.hpp: lowers tables to actions, transfers and reductions.
#pragma once

#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/schedule/check/validate.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace heddle::inline v0::schedule {

/// Which lowering passes run.
struct lowering {
  bool merge_backward = true;    ///< I directly followed by W of the same stage and microbatch becomes B,
                                 ///< unless the input gradient goes to another rank, which need not wait for W
  bool place_transfers = true;   ///< sends and receives between stages on different ranks
  bool reduce_gradients = true;  ///< REDUCE_GRAD after the last B or W of each stage
};

namespace detail {

// What a list does next: one action, or the two computations of a pair, and how many entries that covers: two also
// where I and W merge.
struct next_actions {
  action what[2];
  int count = 1;
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

// I and W stay apart where the input gradient is sent on: the next rank need not wait for W. So do those of which one
// is in a pair.
constexpr next_actions next_of(const action* at, const action* end, const lowering& passes,
                               const table_view& t) noexcept {
  next_actions n{{*at, {}}, 1, 1};
  if (at + 1 == end) return n;
  if (at->overlaps_next) {
    if (!is_compute(at->kind) || !is_compute(at[1].kind)) return n;
    n.what[1] = at[1];
    n.count = n.entries = 2;
  } else if (passes.merge_backward && at->kind == action_kind::backward_input &&
             at[1].kind == action_kind::backward_weight && at[1].stage == at->stage &&
             at[1].microbatch == at->microbatch && !at[1].overlaps_next && send_after(*at, t).stage < 0) {
    n.what[0].kind = action_kind::backward;
    n.entries = 2;
  }
  return n;
}

// Whether it is neither in a pair nor merged, which spares `next_of`.
constexpr bool stands_alone(const action& a) noexcept {
  return !a.overlaps_next && a.kind != action_kind::backward_input;
}

// First pass: offsets of the lowered lists.
constexpr void lowered_offsets(const table_view& t, const lowering& passes, int* offsets) {
  const bool reduce = passes.reduce_gradients && !t.forward_only() && !t.has(action_kind::reduce_gradient);
  for (int r = 0; r <= t.ranks(); ++r) offsets[r] = 0;
  for (int r = 0; r < t.ranks(); ++r) {
    const action* at = t.actions().data() + t.offset(r);
    const action* const end = t.actions().data() + t.offset(r + 1);
    while (at != end) {
      if (at->kind == action_kind::backward_weight && !at->overlaps_next) {  // sends nothing
        ++offsets[r + 1];
        ++at;
        continue;
      }
      const next_actions n = next_of(at, end, passes, t);
      offsets[r + 1] += n.count;
      for (int k = 0; k < n.count && passes.place_transfers; ++k) {
        const action send = send_after(n.what[k], t);
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

// Which computations of a table are done, and which can begin.
class computed {
 public:
  constexpr explicit computed(const table_view& t)
      : t_(t), m_(t.microbatches()), done_memory_(t.stages() * m_), done_(done_memory_.data()) {}

  // Whether what an action needs of this and of other ranks is done; true for what is no computation.
  constexpr bool ready(const action& a) const {
    switch (a.kind) {
      case action_kind::forward:
        return done(t_.previous(a.stage, a.microbatch), a.microbatch, forward_done);
      case action_kind::backward:
      case action_kind::backward_input:
        return done(a.stage, a.microbatch, forward_done) &&
               done(t_.next(a.stage, a.microbatch), a.microbatch, input_gradient_done);
      case action_kind::backward_weight:
        return done(a.stage, a.microbatch, input_gradient_done);
      default:
        return true;
    }
  }
  // Notes a computation; whether it completes the weight gradient of its stage and microbatch.
  constexpr bool note(const action& a) {
    std::uint8_t& here = done_[a.stage * m_ + a.microbatch];
    if (a.kind == action_kind::forward) here = static_cast<std::uint8_t>(here | forward_done);
    if (a.kind == action_kind::backward || a.kind == action_kind::backward_input)
      here = static_cast<std::uint8_t>(here | input_gradient_done);
    if ((a.kind != action_kind::backward && a.kind != action_kind::backward_weight) || (here & gradient_done))
      return false;
    here = static_cast<std::uint8_t>(here | gradient_done);
    return true;
  }

 protected:
  static constexpr std::uint8_t forward_done = 1, gradient_done = 2, input_gradient_done = 4;

  constexpr bool done(int stage, int microbatch, std::uint8_t what) const {
    return stage < 0 || (done_[stage * m_ + microbatch] & what) != 0;
  }

  const table_view& t_;
  int m_;

 private:
  scratch<std::uint8_t> done_memory_;
  std::uint8_t* done_;
};

// Walks the lists of all ranks until they are placed.
class placement : private computed {
 public:
  constexpr placement(const table_view& t, const lowering& passes, const int* offsets, action* out)
      : computed(t),
        passes_(passes),
        out_(out),
        reduce_(passes.reduce_gradients && !t.forward_only() && !t.has(action_kind::reduce_gradient)),
        left_memory_(t.stages()),
        head_memory_(t.ranks()),
        tail_memory_(t.ranks()),
        left_(left_memory_.data()),
        head_(head_memory_.data()),
        tail_(tail_memory_.data()) {
    for (int s = 0; s < t.stages(); ++s) left_[s] = t.microbatches_of(s);
    for (int r = 0; r < t.ranks(); ++r) {
      head_[r] = t.offset(r);
      tail_[r] = offsets[r];
    }
  }

  // The first action that waits for ever, -1 if there is none.
  constexpr int run() {
    const action* const in = t_.actions().data();
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < t_.ranks(); ++r) {
        const int end = t_.offset(r + 1);
        if (head_[r] == end) continue;
        if (const action& a = in[head_[r]]; stands_alone(a)) {
          if (!ready(a)) continue;
          out_[tail_[r]++] = a;
          if (passes_.place_transfers && a.kind < action_kind::backward_weight) place_transfers(a, r);
          finish(a, r);
          ++head_[r];
          progress = true;
          continue;
        }
        const next_actions n = next_of(in + head_[r], in + end, passes_, t_);
        if (!ready(n.what[0]) || (n.count == 2 && !ready(n.what[1]))) continue;
        for (int k = 0; k < n.count; ++k) out_[tail_[r]++] = n.what[k];
        for (int k = 0; k < n.count && passes_.place_transfers; ++k) place_transfers(n.what[k], r);
        for (int k = 0; k < n.count; ++k) finish(n.what[k], r);
        head_[r] += n.entries;
        progress = true;
      }
    }
    for (int r = 0; r < t_.ranks(); ++r)
      if (head_[r] != t_.offset(r + 1)) return head_[r];
    for (int s = 0; s < t_.stages() && reduce_; ++s)
      if (left_[s] > 0)
        throw schedule_error("heddle: the schedule cannot be lowered: stage " + std::to_string(s) + " lacks " +
                             std::to_string(left_[s]) + " backwards; schedule::check_table says which");
    // A stage without microbatches has a gradient of zeros, which other replicas' may be added to.
    for (int s = 0; s < t_.stages() && reduce_; ++s)
      if (has_none(s)) out_[tail_[t_.rank_of(s)]++] = action{action_kind::reduce_gradient, s, -1, -1};
    return -1;
  }

 private:
  constexpr void place_transfers(const action& a, int rank) {
    const action send = send_after(a, t_);
    if (send.stage < 0) return;
    out_[tail_[rank]++] = send;
    out_[tail_[send.peer]++] = counterpart(send, t_);
  }

  // Whether a stage has no microbatches, and its reduction has not been placed.
  constexpr bool has_none(int stage) const { return left_[stage] == 0 && t_.microbatches_of(stage) == 0; }

  constexpr void finish(const action& a, int rank) {
    if (!is_compute(a.kind)) {
      if (a.kind == action_kind::optimizer_step && reduce_ && has_none(a.stage)) {
        out_[tail_[rank] - 1] = action{action_kind::reduce_gradient, a.stage, -1, -1};
        out_[tail_[rank]++] = a;
        left_[a.stage] = -1;
      }
      return;
    }
    if (note(a) && --left_[a.stage] == 0 && reduce_)
      out_[tail_[rank]++] = action{action_kind::reduce_gradient, a.stage, -1, -1};
  }

  const lowering& passes_;
  action* out_;
  bool reduce_;
  scratch<int> left_memory_;
  scratch<int> head_memory_;
  scratch<int> tail_memory_;
  int* left_;
  int* head_;
  int* tail_;
};

// Second pass: fills the lists.
constexpr void lower_into(const table_view& t, const lowering& passes, const int* offsets, action* out) {
  const int stuck = placement(t, passes, offsets, out).run();
  if (stuck < 0) return;
  int rank = 0;
  while (stuck >= t.offset(rank + 1)) ++rank;
  std::string text = "heddle: the schedule cannot be executed in order: rank " + std::to_string(rank) + ", position " +
                     std::to_string(stuck - t.offset(rank)) + " (";
  text += to_text(t[stuck]);
  throw schedule_error(text + ") waits for ever; schedule::check_table says for what");
}

// Lowering counts with stages and microbatches: they must be there. Compilers see to that themselves, and count steps.
constexpr void refuse_unknown(const table_view& t) {
  if (std::is_constant_evaluated()) return;
  report found = check_shape(t);
  if (found.ok()) found = check_places(t);
  if (!found.ok()) throw schedule_error(to_string(found));
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
    auto lowered = table_of<When, Ranks>.template with_actions<static_cast<std::size_t>(offsets[Ranks])>();
    lowered.offsets = offsets;
    lower_into(t, lowering{}, lowered.offsets.data(), lowered.actions.data());
    return lowered;
  }
}

}  // namespace detail

/// Places what an executor needs around the computations of a valid table.
/// Ranks are walked round-robin and a computation is appended once its inputs have been; behind one whose consumer is
/// on another rank goes the send and, at the same moment, the receive to the consumer's list. A receive then stands as
/// early as the global order allows, so that it can be started before unrelated computations, and there is one global
/// order of all actions: the table completes even where sends and receives block. The two computations of an overlapped
/// pair stay side by side: their receives stand before the pair, the sends of both behind it. REDUCE_GRAD of a stage
/// follows its last B or W.
/// Errors: `schedule_error` if the table has transfers already, lists what does not exist, lacks backwards or cannot be
/// executed in order, naming rank and action; all else is for `check_table` to say.
/// Source: the `_add_send_recv` pass of torch.distributed.pipelining (described, not copied).
constexpr action_table lower(table_view table, lowering passes = {}) {
  detail::refuse_unknown(table);
  if (passes.place_transfers && table.has_transfers())
    throw schedule_error("heddle: the table to lower has sends and receives already");
  action_table lowered = like(table);
  detail::lowered_offsets(table, passes, lowered.offsets.data());
  lowered.actions.assign(static_cast<std::size_t>(lowered.offsets.back()), action{});
  detail::lower_into(table, passes, lowered.offsets.data(), lowered.actions.data());
  return lowered;
}

/// The lowered table of a static schedule, as a constexpr object of exact size.
template <schedule_policy When, int Ranks>
  requires(When::is_static && Ranks > 0)
inline constexpr auto lowered_of = detail::static_lowered<When, Ranks>();

}  // namespace heddle::inline v0::schedule

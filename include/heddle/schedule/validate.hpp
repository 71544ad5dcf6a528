// heddle/schedule/validate.hpp: whether an action table is complete, in order, and finishes.
#pragma once

#include <heddle/schedule/report.hpp>
#include <heddle/schedule/scratch.hpp>
#include <heddle/schedule/table.hpp>

#include <cstdint>

namespace heddle::inline v0::schedule {
namespace detail {

// One bit per kind that occurs once per stage and microbatch.
using kind_bits = std::uint16_t;
constexpr kind_bits bit(action_kind k) noexcept {
  return static_cast<kind_bits>(1u << static_cast<unsigned>(k));
}
constexpr kind_bits input_gradient_bits =
    static_cast<kind_bits>(bit(action_kind::backward) | bit(action_kind::backward_input));
constexpr kind_bits weight_gradient_bits =
    static_cast<kind_bits>(bit(action_kind::backward) | bit(action_kind::backward_weight));

// Checks the lists one by one, then that nothing is missing and that both sides of each channel agree.
class structure_check {
 public:
  constexpr explicit structure_check(const table_view& t)
      : t_(t),
        m_(t.microbatches()),
        seen_memory_(t.stages() * m_),
        stages_memory_(t.stages()),
        seen_(seen_memory_.data()),
        stages_(stages_memory_.data()) {
    for (const action *a = t.actions().data(), *end = a + t.actions().size(); a != end; ++a) {
      if (a->kind <= action_kind::backward_weight) continue;
      if (a->kind == action_kind::reduce_gradient) reduces_ = true;
      if (a->kind == action_kind::optimizer_step) steps_ = true;
      if (is_transfer(a->kind)) placed_ = true;
    }
  }

  constexpr report run() {
    for (int r = 0; r < t_.ranks(); ++r) {
      rank_ = r;
      const action* const list = t_.actions().data() + t_.offset(r);
      const int size = t_.offset(r + 1) - t_.offset(r);
      for (position_ = 0; position_ < size; ++position_)
        if (!check(list[position_])) return found_;
    }
    if (!complete()) return found_;
    if (placed_) channels();
    return found_;
  }

 private:
  struct stage_state {
    int gradients = 0;
    bool reduced = false;
    bool stepped = false;
  };

  constexpr bool fail(problem what, const action& where, const action& needs = {}, int other_rank = -1) {
    found_.what = what;
    found_.rank = rank_;
    found_.position = position_;
    found_.where = where;
    found_.needs = needs;
    found_.other_rank = other_rank;
    return false;
  }
  constexpr bool needs(const action& a, action_kind kind, int stage) {
    return fail(problem::out_of_order, a, action{kind, stage, a.microbatch, -1});
  }
  constexpr bool here(int stage) const noexcept { return t_.rank_of(stage) == rank_; }

  constexpr bool check(const action& a) {
    if (a.stage < 0 || a.stage >= t_.stages()) return fail(problem::unknown_stage, a);
    if (is_per_stage(a.kind) ? a.microbatch != -1 : a.microbatch < 0 || a.microbatch >= m_)
      return fail(problem::unknown_microbatch, a);
    if (!here(a.stage)) return fail(problem::wrong_rank, a, {}, t_.rank_of(a.stage));
    if (!is_transfer(a.kind) && a.peer != -1) return fail(problem::wrong_peer, a);
    if (a.kind == action_kind::unshard || a.kind == action_kind::reshard) return true;
    if (is_per_stage(a.kind)) return check_per_stage(a);
    if (!t_.handles(a.stage, a.microbatch)) return fail(problem::not_its_microbatch, a);
    if (t_.forward_only() && !is_of_forward(a.kind)) return fail(problem::backward_in_inference, a);

    kind_bits& seen = seen_[a.stage * m_ + a.microbatch];
    if (seen & bit(a.kind)) return fail(problem::repeated, a, a);
    seen = static_cast<kind_bits>(seen | bit(a.kind));
    switch (a.kind) {
      case action_kind::forward:
        return check_input(a, t_.previous(a.stage, a.microbatch), action_kind::recv_forward, bit(a.kind));
      case action_kind::backward:
        if (seen & bit(action_kind::backward_input)) return repeats(a, action_kind::backward_input);
        break;
      case action_kind::backward_input:
        if (seen & bit(action_kind::backward)) return repeats(a, action_kind::backward);
        break;
      case action_kind::backward_weight:
        if (seen & bit(action_kind::backward)) return repeats(a, action_kind::backward);
        if (!(seen & bit(action_kind::backward_input))) return needs(a, action_kind::backward_input, a.stage);
        ++stages_[a.stage].gradients;
        return true;
      case action_kind::send_forward:
        if (!(seen & bit(action_kind::forward))) return needs(a, action_kind::forward, a.stage);
        return check_transfer(a);
      case action_kind::send_backward:
        if (!(seen & input_gradient_bits)) return needs(a, action_kind::backward, a.stage);
        return check_transfer(a);
      case action_kind::recompute:
      case action_kind::offload:
      case action_kind::reload:
        return true;
      default:
        return check_transfer(a);
    }
    // B or I
    if (!(seen & bit(action_kind::forward))) return needs(a, action_kind::forward, a.stage);
    if (a.kind == action_kind::backward) ++stages_[a.stage].gradients;
    return check_input(a, t_.next(a.stage, a.microbatch), action_kind::recv_backward, input_gradient_bits);
  }

  constexpr bool repeats(const action& a, action_kind before) {
    return fail(problem::repeated, a, action{before, a.stage, a.microbatch, -1});
  }

  // What a computation reads: received, or computed before by the stage `from` of the same rank.
  constexpr bool check_input(const action& a, int from, action_kind receive, kind_bits computed) {
    if (from < 0) return true;
    if (here(from)) {
      if (seen_[from * m_ + a.microbatch] & computed) return true;
      return needs(a, a.kind, from);
    }
    if (!placed_ || (seen_[a.stage * m_ + a.microbatch] & bit(receive))) return true;
    return needs(a, receive, a.stage);
  }

  constexpr bool check_transfer(const action& a) {
    const int other = other_stage(a, t_);
    if (other < 0 || here(other)) return fail(problem::needless_transfer, a);
    if (a.peer != t_.rank_of(other)) return fail(problem::wrong_peer, a, {}, t_.rank_of(other));
    return true;
  }

  constexpr bool check_per_stage(const action& a) {
    stage_state& stage = stages_[a.stage];
    bool& done = a.kind == action_kind::reduce_gradient ? stage.reduced : stage.stepped;
    if (done) return fail(problem::repeated, a, a);
    done = true;
    if (t_.forward_only()) return fail(problem::backward_in_inference, a);
    if (stage.gradients < t_.microbatches_of(a.stage)) {
      int i = 0;
      while (!t_.handles(a.stage, i) || (seen_[a.stage * m_ + i] & weight_gradient_bits)) ++i;
      const bool split = (seen_[a.stage * m_ + i] & bit(action_kind::backward_input)) != 0;
      return fail(problem::out_of_order, a,
                  action{split ? action_kind::backward_weight : action_kind::backward, a.stage, i, -1});
    }
    if (a.kind == action_kind::optimizer_step && reduces_ && !stage.reduced)
      return fail(problem::out_of_order, a, action{action_kind::reduce_gradient, a.stage, -1, -1});
    return true;
  }

  constexpr bool complete() {
    position_ = -1;
    for (int s = 0; s < t_.stages(); ++s) {
      rank_ = t_.rank_of(s);
      for (int i = 0; i < m_; ++i) {
        if (!t_.handles(s, i)) continue;
        kind_bits transfers = 0;
        if (placed_ && t_.next(s, i) >= 0 && !here(t_.next(s, i))) transfers = bit(action_kind::send_forward);
        if (placed_ && !t_.forward_only() && t_.previous(s, i) >= 0 && !here(t_.previous(s, i)))
          transfers = static_cast<kind_bits>(transfers | bit(action_kind::send_backward));
        const kind_bits seen = seen_[s * m_ + i];
        if (!(seen & bit(action_kind::forward))) return absent(action_kind::forward, s, i);
        if (!t_.forward_only()) {
          if (!(seen & input_gradient_bits)) return absent(action_kind::backward, s, i);
          if (!(seen & weight_gradient_bits)) return absent(action_kind::backward_weight, s, i);
        }
        if ((seen & transfers) != transfers)
          return absent((transfers & ~seen) & bit(action_kind::send_forward) ? action_kind::send_forward
                                                                             : action_kind::send_backward,
                        s, i);
      }
      if (reduces_ && !stages_[s].reduced) return absent(action_kind::reduce_gradient, s, -1);
      if (steps_ && !stages_[s].stepped) return absent(action_kind::optimizer_step, s, -1);
    }
    return true;
  }
  constexpr bool absent(action_kind kind, int stage, int microbatch) {
    return fail(problem::missing, {}, action{kind, stage, microbatch, -1});
  }

  // The k-th message a rank sends to another must be the k-th that one receives from it. Every send has its receive:
  // computations need their receives, and those are all there.
  constexpr void channels() {
    const int p = t_.ranks();
    const scratch<int> counts_memory(p);
    const scratch<int> place_memory(2 * t_.stages() * m_);
    int* const counts = counts_memory.data();  // messages so far between this rank and each other
    int* const place = place_memory.data();    // which message of its channel an input is
    const action* const actions = t_.actions().data();
    for (int r = 0; r < p; ++r) {
      for (int other = 0; other < p; ++other) counts[other] = 0;
      for (int k = t_.offset(r); k < t_.offset(r + 1); ++k) {
        const action& a = actions[k];
        if (!is_send(a.kind)) continue;
        const int direction = a.kind == action_kind::send_forward ? 0 : 1;
        place[2 * (other_stage(a, t_) * m_ + a.microbatch) + direction] = counts[a.peer]++;
      }
    }
    for (int r = 0; r < p; ++r) {
      for (int other = 0; other < p; ++other) counts[other] = 0;
      for (int k = t_.offset(r); k < t_.offset(r + 1); ++k) {
        const action& a = actions[k];
        if (!is_recv(a.kind)) continue;
        const int direction = a.kind == action_kind::recv_forward ? 0 : 1;
        const int expected = counts[a.peer]++;
        if (place[2 * (a.stage * m_ + a.microbatch) + direction] == expected) continue;
        rank_ = r;
        position_ = k - t_.offset(r);
        fail(problem::transfer_order, a, nth_send(a.peer, r, expected), a.peer);
        return;
      }
    }
  }
  constexpr action nth_send(int from, int to, int n) const {
    for (const action& a : t_.list(from))
      if (is_send(a.kind) && a.peer == to && n-- == 0) return a;
    return {};
  }

  const table_view& t_;
  int m_;
  scratch<kind_bits> seen_memory_;
  scratch<stage_state> stages_memory_;
  kind_bits* seen_;
  stage_state* stages_;
  bool placed_ = false;
  bool reduces_ = false;
  bool steps_ = false;
  report found_{};
  int rank_ = -1;
  int position_ = -1;
};

constexpr report check_shape(const table_view& t) {
  report found{};
  if (t.ranks() < 1 || t.stages() < 1 || t.microbatches() < 1) found.what = problem::malformed;
  if (t.chains() < 1 || (found.ok() && (t.stages() % t.chains() != 0 || t.microbatches() < t.chains())))
    found.what = problem::malformed;
  if (std::int64_t{t.stages()} * t.microbatches() > most_cells) found.what = problem::too_large;
  for (int s = 0; s < t.stages() && found.ok(); ++s)
    if (t.rank_of(s) < 0 || t.rank_of(s) >= t.ranks()) {
      found.what = problem::malformed;
      found.where.stage = s;
    }
  return found;
}

// Runs the lists in order, each action as soon as what it waits for has happened. Structure must be sound, so what an
// action needs of its own rank has been listed before it: only other ranks are waited for.
class execution {
 public:
  constexpr execution(const table_view& t, transfers mode)
      : t_(t),
        m_(t.microbatches()),
        actions_(t.actions().data()),
        placed_(t.has_transfers()),
        blocking_(mode == transfers::rendezvous && placed_),
        done_memory_(t.stages() * m_),
        head_memory_(t.ranks()),
        done_(done_memory_.data()),
        head_(head_memory_.data()) {}

  constexpr report run() {
    const int p = t_.ranks();
    for (int r = 0; r < p; ++r) head_[r] = t_.offset(r);
    // Forwards travel up the ranks and gradients down: sweeping both ways lets each run through in one sweep.
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < p; ++r) progress = (blocking_ ? meet(r) : advance(r)) || progress;
      for (int r = p - 1; r >= 0; --r) progress = (blocking_ ? meet(r) : advance(r)) || progress;
    }
    report found{};
    for (int r = 0; r < p && found.ok(); ++r)
      if (head_[r] != t_.offset(r + 1)) found = stuck(r);
    return found;
  }

 private:
  // Transfers block: one happens when it is the next action of both ranks. With one order per channel (the structure
  // check), the next actions belong together if one sends to the other and the other receives from it.
  constexpr bool meet(int rank) {
    const int begin = head_[rank];
    const int end = t_.offset(rank + 1);
    int k = begin;
    for (; k != end; ++k) {
      const action& a = actions_[k];
      if (a.peer < 0) continue;
      const int other = head_[a.peer];
      if (other == t_.offset(a.peer + 1)) break;
      const action& b = actions_[other];
      if (b.peer != rank || b.microbatch != a.microbatch || is_send(a.kind) == is_send(b.kind)) break;
      head_[a.peer] = other + 1;
    }
    head_[rank] = k;
    return k != begin;
  }

  // Sends return at once, or no transfers are placed.
  constexpr bool advance(int rank) {
    const int begin = head_[rank];
    const int end = t_.offset(rank + 1);
    int k = begin;
    for (; k != end; ++k) {
      const action& a = actions_[k];
      if (is_per_stage(a.kind) || is_of_saved(a.kind)) continue;
      if (!ready(a)) break;
      kind_bits& d = done_[a.stage * m_ + a.microbatch];
      d = static_cast<kind_bits>(d | bit(a.kind));
    }
    head_[rank] = k;
    return k != begin;
  }

  constexpr bool done(int stage, int microbatch, kind_bits bits) const {
    return stage < 0 || (done_[stage * m_ + microbatch] & bits) != 0;
  }
  constexpr bool ready(const action& a) const {
    switch (a.kind) {
      case action_kind::forward:
        return placed_ || done(t_.previous(a.stage, a.microbatch), a.microbatch, bit(action_kind::forward));
      case action_kind::backward:
      case action_kind::backward_input:
        return placed_ || done(t_.next(a.stage, a.microbatch), a.microbatch, input_gradient_bits);
      case action_kind::recv_forward:
        return done(t_.previous(a.stage, a.microbatch), a.microbatch, bit(action_kind::send_forward));
      case action_kind::recv_backward:
        return done(t_.next(a.stage, a.microbatch), a.microbatch, bit(action_kind::send_backward));
      default:
        return true;
    }
  }

  constexpr report stuck(int rank) const {
    report found{};
    found.what = problem::deadlock;
    found.rank = rank;
    found.position = head_[rank] - t_.offset(rank);
    found.where = actions_[head_[rank]];
    const action& a = found.where;
    if (is_transfer(a.kind))
      found.needs = counterpart(a, t_);
    else
      found.needs =
          action{a.kind, a.kind == action_kind::forward ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch), a.microbatch, -1};
    const int other = found.other_rank = t_.rank_of(found.needs.stage);
    if (head_[other] != t_.offset(other + 1)) {
      found.other_position = head_[other] - t_.offset(other);
      found.other = actions_[head_[other]];
    }
    return found;
  }

  const table_view& t_;
  int m_;
  const action* actions_;
  bool placed_;
  bool blocking_;
  scratch<kind_bits> done_memory_;
  scratch<int> head_memory_;
  kind_bits* done_;
  int* head_;
};

// The two halves of `validate`, for tables so large that one constant expression may not do both.
constexpr report check_structure(const table_view& t) {
  const report found = check_shape(t);
  return found.ok() ? structure_check(t).run() : found;
}
constexpr report check_execution(const table_view& t, transfers mode) {
  return execution(t, mode).run();
}

}  // namespace detail

/// The first problem of a table, lowered or not: each stage on one rank; F, then B or I and W, once per stage and
/// microbatch; REDUCE_GRAD after the last of them; with transfers placed: received before used, sent after computed,
/// every send with its receive, one order per pair of ranks; and the lists, run in order, finish where transfers behave
/// as `mode` says; `asynchronous` is checked like `buffered`, a receive waiting where it stands, so that a table may be
/// refused that only early receives would save. The strictest mode, the default, is passed only by tables that finish in
/// the others, too.
constexpr report validate(table_view table, transfers mode = transfers::rendezvous) {
  const report found = detail::check_structure(table);
  return found.ok() ? detail::check_execution(table, mode) : found;
}

/// Refuses a table with a problem. Errors: `schedule_error` naming rank, position, action and microbatch.
constexpr void check(table_view table, transfers mode = transfers::rendezvous) {
  const report found = validate(table, mode);
  if (!found.ok()) throw schedule_error(to_string(found));
}

}  // namespace heddle::inline v0::schedule

// heddle/schedule/check/validate_execution.hpp: checks that all lists come to an end.
#pragma once

#include <heddle/schedule/check/validate_lists.hpp>

#include <algorithm>

namespace heddle::inline v0::schedule::detail {

// The number of the kind that meets a transfer of this kind.
constexpr int met_by(action_kind k) noexcept {
  return static_cast<int>(k) ^ 1;
}
static_assert(met_by(action_kind::send_forward) == static_cast<int>(action_kind::recv_forward) &&
              met_by(action_kind::recv_forward) == static_cast<int>(action_kind::send_forward) &&
              met_by(action_kind::send_backward) == static_cast<int>(action_kind::recv_backward) &&
              met_by(action_kind::recv_backward) == static_cast<int>(action_kind::send_backward));

// Runs the lists in order, each action as soon as what it waits for has happened. Each list must be sound, so what an
// action needs of its own rank has been listed before it: only other ranks are waited for. Where transfers block, a table
// that comes to its end has its messages in one order as well; other modes need to know that before.
class execution {
 public:
  constexpr execution(const table_view& t, transfers mode)
      : t_(t),
        m_(t.microbatches()),
        actions_(t.actions().data()),
        placed_(t.has_transfers()),
        mode_(placed_ ? mode : transfers::buffered),
        done_memory_(t.stages() * m_),
        head_memory_(t.ranks()),
        done_(done_memory_.data()),
        head_(head_memory_.data()) {}

  constexpr report run() {
    const int p = t_.ranks();
    for (int r = 0; r < p; ++r) head_[r] = t_.offset(r);
    if (mode_ == transfers::grouped) return run_groups();
    const bool blocking = mode_ == transfers::rendezvous;
    if (blocking && all_meet()) return {};
    // Forwards travel up the ranks and gradients down: sweeping both ways lets each run through in one sweep.
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < p; ++r) progress = (blocking ? meet(r) : advance(r)) || progress;
      for (int r = p - 1; r >= 0; --r) progress = (blocking ? meet(r) : advance(r)) || progress;
    }
    report found{};
    for (int r = 0; r < p && found.ok(); ++r)
      if (head_[r] != t_.offset(r + 1)) found = stuck(r, waits_at(r));
    return found;
  }

 private:
  // Transfers block: one happens when it is the next action of both ranks.
  constexpr bool match(const action& a, const action& b, int rank) const {
    return b.peer == rank && b.microbatch == a.microbatch && met_by(a.kind) == static_cast<int>(b.kind) &&
           b.stage == other_stage(a, t_);
  }
  // Goes from each rank that waits to the one it waits for, until all have ended; false if that leads round and round.
  // From where it stops, sweeps tell the first rank that waits for ever. Compilers count steps of constant expressions
  // by statements and calls: so this is `meet` written out.
  constexpr bool all_meet() {
    const int p = t_.ranks();
    const bool one_way = !t_.has_paths();  // from a stage to the next
    const scratch<int> end_memory(p);
    int* const end = end_memory.data();
    for (int r = 0; r < p; ++r) end[r] = t_.offset(r + 1);
    int* const head = head_;
    const action* const actions = actions_;
    for (int first = 0, rank = 0, waits = 0; first < p;) {
      const int begin = head[rank];
      int left = end[rank] - begin;
      const action* a = actions + begin;
      int peer = -1;
      for (; left > 0; ++a, --left) {
        if ((peer = a->peer) < 0) continue;
        if (head[peer] == end[peer]) break;
        const action& b = actions[head[peer]];
        if (b.peer != rank || b.microbatch != a->microbatch ||
            (static_cast<int>(a->kind) ^ 1) != static_cast<int>(b.kind))
          break;
        if (one_way ? b.stage - a->stage !=
                          (a->kind == action_kind::send_forward || a->kind == action_kind::recv_backward ? 1 : -1)
                    : b.stage != other_stage(*a, t_))
          break;
        ++head[peer];
      }
      head[rank] = end[rank] - left;
      waits = head[rank] == begin ? waits + 1 : 0;
      if (waits > p) return false;
      if (left > 0) {
        rank = peer;
      } else {
        while (first < p && head[first] == end[first]) ++first;
        rank = first;
      }
    }
    return true;
  }
  constexpr bool meet(int rank) {
    const int begin = head_[rank], end = t_.offset(rank + 1);
    int k = begin;
    for (; k != end; ++k) {
      const action& a = actions_[k];
      if (a.peer < 0) continue;
      const int other = head_[a.peer];
      if (other == t_.offset(a.peer + 1) || !match(a, actions_[other], rank)) break;
      head_[a.peer] = other + 1;
    }
    head_[rank] = k;
    return k != begin;
  }

  // Sends return at once, or no transfers are placed. A pair begins when both its parts can.
  constexpr bool advance(int rank) {
    const int begin = head_[rank], end = t_.offset(rank + 1);
    int k = begin;
    for (; k != end; ++k) {
      const action& a = actions_[k];
      if (is_per_stage(a.kind) || is_of_saved(a.kind)) continue;
      if (!ready(a) || (a.overlaps_next && !ready(actions_[k + 1]))) break;
      kind_bits& d = done_[a.stage * m_ + a.microbatch];
      d = static_cast<kind_bits>(d | bit(a.kind));
    }
    head_[rank] = k;
    return k != begin;
  }

  constexpr bool done(int stage, int microbatch, kind_bits bits) const {
    return stage < 0 || (done_[stage * m_ + microbatch] & bits) != 0;
  }
  // Computations wait for their inputs where receives do not, or where none are placed.
  constexpr bool ready(const action& a) const {
    const bool waits = !placed_ || mode_ == transfers::asynchronous;
    switch (a.kind) {
      case action_kind::forward:
        return !waits ||
               arrived(t_.previous(a.stage, a.microbatch), a, action_kind::send_forward, bit(action_kind::forward));
      case action_kind::backward:
      case action_kind::backward_input:
        return !waits || arrived(t_.next(a.stage, a.microbatch), a, action_kind::send_backward, input_gradient_bits);
      case action_kind::recv_forward:
        return waits || done(t_.previous(a.stage, a.microbatch), a.microbatch, bit(action_kind::send_forward));
      case action_kind::recv_backward:
        return waits || done(t_.next(a.stage, a.microbatch), a.microbatch, bit(action_kind::send_backward));
      default:
        return true;
    }
  }
  // Whether what stage `from` computes for `a` is there: sent, or computed where nothing is sent.
  constexpr bool arrived(int from, const action& a, action_kind send, kind_bits computed) const {
    return from < 0 || (done_[from * m_ + a.microbatch] &
                        (placed_ && t_.rank_of(from) != t_.rank_of(a.stage) ? bit(send) : computed)) != 0;
  }

  // Neighbouring transfers of a list start together, and the rank goes on when all of them have met.
  constexpr report run_groups() {
    const scratch<int> met_memory(4 * t_.stages() * m_);
    const scratch<int> started_memory(t_.ranks());
    int* const met = met_memory.data();          // index of the action at the other side, by this side's `slot`
    int* const started = started_memory.data();  // per rank: the end of the transfers that have been started
    for (int k = 0; k < static_cast<int>(t_.actions().size()); ++k)
      if (is_transfer(actions_[k].kind)) met[slot(counterpart(actions_[k], t_))] = k;
    int behind = 0;  // a rank whose group waits, and the transfer of it that has not met
    int waits = -1;
    for (bool progress = true; progress;) {
      progress = false;
      waits = -1;
      for (int r = 0; r < t_.ranks(); ++r) {
        int& head = head_[r];
        const int end = t_.offset(r + 1);
        while (head != end) {
          int group = head;
          while (group != end && is_transfer(actions_[group].kind)) ++group;
          progress = progress || group > started[r];
          started[r] = (std::max)(group, started[r]);
          int k = head;
          while (k != group && met[slot(actions_[k])] < started[actions_[k].peer]) ++k;
          if (k != group) {
            if (waits < 0) behind = r, waits = k;
            break;
          }
          progress = true;
          head = group == head ? head + 1 : group;
        }
      }
    }
    return waits < 0 ? report{} : stuck(behind, waits);
  }
  constexpr int slot(const action& a) const noexcept {
    return 4 * (a.stage * m_ + a.microbatch) + static_cast<int>(a.kind) - static_cast<int>(action_kind::send_forward);
  }

  // Where a rank waits: of a pair at the part that cannot begin.
  constexpr int waits_at(int rank) const {
    const int k = head_[rank];
    return actions_[k].overlaps_next && is_compute(actions_[k].kind) && ready(actions_[k]) ? k + 1 : k;
  }

  constexpr report stuck(int rank, int at) const {
    report found{};
    found.what = problem::deadlock;
    found.rank = rank;
    found.position = at - t_.offset(rank);
    found.where = actions_[at];
    const action& a = found.where;
    if (is_transfer(a.kind)) {
      found.needs = counterpart(a, t_);
    } else {
      const bool up = a.kind == action_kind::forward;
      const int from = up ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch);
      const bool sent = placed_ && t_.rank_of(from) != rank;
      found.needs = action{!sent ? a.kind
                           : up  ? action_kind::send_forward
                                 : action_kind::send_backward,
                           from, a.microbatch, sent ? rank : -1};
    }
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
  transfers mode_;
  scratch<kind_bits> done_memory_;
  scratch<int> head_memory_;
  kind_bits* done_;
  int* head_;
};

}  // namespace heddle::inline v0::schedule::detail

// heddle/schedule/check/validate_lists.hpp: checks each rank's list, and messages.
#pragma once

#include <heddle/schedule/check/report.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/table.hpp>

#include <cstdint>

namespace heddle::inline v0::schedule::detail {

// One bit per kind that occurs once per stage and microbatch.
using kind_bits = std::uint16_t;
constexpr kind_bits bit(action_kind k) noexcept {
  return static_cast<kind_bits>(1u << static_cast<unsigned>(k));
}
inline constexpr kind_bits forward_bit = bit(action_kind::forward), backward_bit = bit(action_kind::backward);
inline constexpr kind_bits input_bit = bit(action_kind::backward_input), weight_bit = bit(action_kind::backward_weight);
inline constexpr kind_bits offload_bit = bit(action_kind::offload), reload_bit = bit(action_kind::reload);
constexpr kind_bits input_gradient_bits =
    static_cast<kind_bits>(bit(action_kind::backward) | bit(action_kind::backward_input));
constexpr kind_bits weight_gradient_bits =
    static_cast<kind_bits>(bit(action_kind::backward) | bit(action_kind::backward_weight));

// What a table has of the actions that then must be there for every stage.
struct table_uses {
  bool transfers = false;
  bool reductions = false;
  bool steps = false;
  bool sharding = false;
};
constexpr table_uses uses_of(const table_view& t) noexcept {
  table_uses uses{};
  for (const action *a = t.actions().data(), *end = a + t.actions().size(); a != end; ++a) {
    if (a->kind <= action_kind::backward_weight) continue;
    uses.transfers = uses.transfers || is_transfer(a->kind);
    if (!is_per_stage(a->kind)) continue;
    uses.reductions = uses.reductions || a->kind == action_kind::reduce_gradient;
    uses.steps = uses.steps || a->kind == action_kind::optimizer_step;
    uses.sharding = uses.sharding || !is_per_step(a->kind);
  }
  return uses;
}

// The first action of a stage or microbatch that does not exist, or of a stage of another rank: what lowering must know
// before it counts with them.
constexpr report check_places(const table_view& t) {
  report found{};
  for (int r = 0; r < t.ranks(); ++r)
    for (int k = t.offset(r); k < t.offset(r + 1); ++k) {
      const action& a = t[k];
      if (a.stage < 0 || a.stage >= t.stages())
        found.what = problem::unknown_stage;
      else if (t.rank_of(a.stage) != r)
        found.what = problem::wrong_rank;
      else if (is_per_stage(a.kind) ? a.microbatch != -1 : a.microbatch < 0 || a.microbatch >= t.microbatches())
        found.what = problem::unknown_microbatch;
      else
        continue;
      found.rank = r;
      found.position = k - t.offset(r);
      found.where = a;
      if (found.what == problem::wrong_rank) found.other_rank = t.rank_of(a.stage);
      return found;
    }
  return found;
}

constexpr bool gives_input_gradient(action_kind k) noexcept {
  return k == action_kind::backward || k == action_kind::backward_input;
}
constexpr bool gives_weight_gradient(action_kind k) noexcept {
  return k == action_kind::backward || k == action_kind::backward_weight;
}
// Whether `b` reads what `a` computes; both are computations.
constexpr bool reads_from(const action& b, const action& a, const table_view& t) noexcept {
  return a.microbatch == b.microbatch &&
         (a.stage == b.stage ||
          (a.kind == action_kind::forward && b.kind == action_kind::forward &&
           t.previous(b.stage, b.microbatch) == a.stage) ||
          (gives_input_gradient(a.kind) && gives_input_gradient(b.kind) && t.next(b.stage, b.microbatch) == a.stage));
}
// Whether both add to the weight gradient of one stage.
constexpr bool add_to_one_gradient(const action& a, const action& b) noexcept {
  return a.stage == b.stage && gives_weight_gradient(a.kind) && gives_weight_gradient(b.kind);
}

// Checks one rank's list: what each action needs of its own rank has been listed before it, and nothing is missing.
// Steps of constant expressions are counted by statements, so that conditions are long here and helpers few.
class list_check {
 public:
  constexpr list_check(const table_view& t, const table_uses& uses)
      : t_(t),
        uses_(uses),
        m_(t.microbatches()),
        s_(t.stages()),
        one_way_(!t.has_paths() && t.chains() == 1),
        forward_only_(t.forward_only()),
        rank_of_(t.rank_of_stage().data()),
        own_memory_(s_),
        own_(own_memory_.data()) {}

  // The first problem of this rank.
  constexpr report run(int rank) {
    rank_ = rank;
    int stages = 0;
    for (int s = 0; s < s_; ++s)
      if (rank_of_[s] == rank) own_[s] = stages++;
    const scratch<kind_bits> seen(stages * m_ + 1);
    const scratch<stage_state> states(stages + 1);
    seen_ = seen.data();
    stages_ = states.data();
    in_pair_ = false;
    found_ = {};
    parts_ = sends_ = 0;
    const action* const list = t_.actions().data() + t_.offset(rank);
    const int size = t_.offset(rank + 1) - t_.offset(rank);
    if (uses_.sharding) {
      for (int k = 0; k < size; ++k)
        if (is_per_stage(list[k].kind) && !is_per_step(list[k].kind) && known_stage(list[k]) && here(list[k].stage))
          stages_[own_[list[k].stage]].sharded = true;
    }
    for (position_ = 0; position_ < size; ++position_)
      if (!check(list[position_]) || ((in_pair_ || list[position_].overlaps_next) && !pair(list[position_])))
        return found_;
    if (in_pair_) {
      position_ = size - 1;
      fail(problem::not_a_pair, list[size - 1]);
    } else {
      complete();
    }
    return found_;
  }

 private:
  struct stage_state {
    int gradients = 0;
    bool reduced = false;
    bool stepped = false;
    bool sharded = false;   // the list has UNSHARD or RESHARD of it
    bool gathered = false;  // its weights are there
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
    return fail(problem::out_of_order, a, action{kind, stage, is_per_stage(kind) ? -1 : a.microbatch, -1});
  }
  constexpr bool late(const action& a, action_kind kind) {
    return fail(problem::too_late, a, action{kind, a.stage, a.microbatch, -1});
  }
  constexpr bool here(int stage) const noexcept { return rank_of_[stage] == rank_; }
  constexpr bool known_stage(const action& a) const noexcept { return a.stage >= 0 && a.stage < s_; }
  constexpr int next(const action& a) const noexcept {
    return !one_way_ ? t_.next(a.stage, a.microbatch) : a.stage + 1 < s_ ? a.stage + 1 : -1;
  }
  constexpr int previous(const action& a) const noexcept {
    return one_way_ ? a.stage - 1 : t_.previous(a.stage, a.microbatch);
  }

  constexpr bool check(const action& a) {
    if (a.stage < 0 || a.stage >= s_) return fail(problem::unknown_stage, a);
    if (rank_of_[a.stage] != rank_) return fail(problem::wrong_rank, a, {}, rank_of_[a.stage]);
    if (a.peer != -1 && !is_transfer(a.kind)) return fail(problem::wrong_peer, a);
    if (a.kind >= action_kind::unshard) return check_per_stage(a);
    if (a.microbatch < 0 || a.microbatch >= m_) return fail(problem::unknown_microbatch, a);
    if (!one_way_ && !t_.handles(a.stage, a.microbatch)) return fail(problem::not_its_microbatch, a);
    if (forward_only_ && !is_of_forward(a.kind)) return fail(problem::backward_in_inference, a);

    kind_bits& cell = seen_[own_[a.stage] * m_ + a.microbatch];
    const kind_bits seen = cell;
    const kind_bits own = static_cast<kind_bits>(1u << static_cast<unsigned>(a.kind));
    if (seen & own) return fail(problem::repeated, a, a);
    cell = static_cast<kind_bits>(seen | own);
    switch (a.kind) {
      case action_kind::forward:
        ++parts_;
        return check_input(a, previous(a), action_kind::recv_forward, own);
      case action_kind::backward:
      case action_kind::backward_input:
        return check_backward(a, seen);
      case action_kind::backward_weight:
        if (seen & backward_bit) return repeats(a, action_kind::backward);
        if (!(seen & input_bit)) return needs(a, action_kind::backward_input, a.stage);
        ++stages_[own_[a.stage]].gradients;
        ++parts_;
        return true;
      case action_kind::send_forward:
        if (!(seen & forward_bit)) return needs(a, action_kind::forward, a.stage);
        ++sends_;
        return check_transfer(a);
      case action_kind::send_backward:
        if (!(seen & input_gradient_bits)) return needs(a, action_kind::backward, a.stage);
        ++sends_;
        return check_transfer(a);
      case action_kind::recompute:
      case action_kind::offload:
      case action_kind::reload:
        return check_saved(a, seen);
      default:
        return check_transfer(a);
    }
  }

  constexpr bool lacks_weights(int stage) const noexcept {
    return stages_[own_[stage]].sharded && !stages_[own_[stage]].gathered;
  }
  constexpr bool repeats(const action& a, action_kind before) {
    return fail(problem::repeated, a, action{before, a.stage, a.microbatch, -1});
  }

  // What a computation reads: the stage's weights, and what was received, or computed before by the stage `from` of the
  // same rank.
  constexpr bool check_input(const action& a, int from, action_kind receive, kind_bits computed) {
    if (uses_.sharding && lacks_weights(a.stage)) return needs(a, action_kind::unshard, a.stage);
    if (from < 0 || (seen_[own_[a.stage] * m_ + a.microbatch] & bit(receive))) return true;
    if (here(from)) return (seen_[own_[from] * m_ + a.microbatch] & computed) ? true : needs(a, a.kind, from);
    return uses_.transfers ? needs(a, receive, a.stage) : true;
  }

  constexpr bool check_backward(const action& a, kind_bits seen) {
    const bool whole = a.kind == action_kind::backward;
    if (seen & input_gradient_bits) return repeats(a, whole ? action_kind::backward_input : action_kind::backward);
    if (!(seen & forward_bit)) return needs(a, action_kind::forward, a.stage);
    if ((seen & offload_bit) && !(seen & reload_bit)) return needs(a, action_kind::reload, a.stage);
    if (whole) ++stages_[own_[a.stage]].gradients;
    parts_ += whole ? 2 : 1;
    return check_input(a, next(a), action_kind::recv_backward, input_gradient_bits);
  }

  // F, OFFLOAD, RELOAD, RECOMPUTE, then B or I.
  constexpr bool check_saved(const action& a, kind_bits seen) {
    if (!(seen & forward_bit)) return needs(a, action_kind::forward, a.stage);
    if (seen & backward_bit) return late(a, action_kind::backward);
    if (seen & input_bit) return late(a, action_kind::backward_input);
    if (seen & bit(action_kind::recompute)) return late(a, action_kind::recompute);
    if (a.kind == action_kind::reload) return (seen & offload_bit) ? true : needs(a, action_kind::offload, a.stage);
    if (a.kind == action_kind::offload) return true;
    if ((seen & offload_bit) && !(seen & reload_bit)) return needs(a, action_kind::reload, a.stage);
    return !lacks_weights(a.stage) || needs(a, action_kind::unshard, a.stage);
  }

  constexpr bool check_transfer(const action& a) {
    const bool up = a.kind == action_kind::send_forward || a.kind == action_kind::recv_backward;
    const int other = up ? next(a) : previous(a);
    if (other < 0 || rank_of_[other] == rank_) return fail(problem::needless_transfer, a);
    return a.peer == rank_of_[other] || fail(problem::wrong_peer, a, {}, rank_of_[other]);
  }

  constexpr bool check_per_stage(const action& a) {
    if (a.microbatch != -1) return fail(problem::unknown_microbatch, a);
    stage_state& stage = stages_[own_[a.stage]];
    if (a.kind == action_kind::unshard) {
      if (stage.gathered) return fail(problem::repeated, a, a);
      return stage.gathered = true;
    }
    if (a.kind == action_kind::reshard) {
      if (!stage.gathered) return needs(a, action_kind::unshard, a.stage);
      stage.gathered = false;
      return true;
    }
    if (t_.forward_only()) return fail(problem::backward_in_inference, a);
    bool& done = a.kind == action_kind::reduce_gradient ? stage.reduced : stage.stepped;
    if (done) return fail(problem::repeated, a, a);
    done = true;
    if (stage.gradients < t_.microbatches_of(a.stage)) {
      int i = 0;
      while (!t_.handles(a.stage, i) || (seen_[own_[a.stage] * m_ + i] & weight_gradient_bits)) ++i;
      const bool split = (seen_[own_[a.stage] * m_ + i] & input_bit) != 0;
      return fail(problem::out_of_order, a,
                  action{split ? action_kind::backward_weight : action_kind::backward, a.stage, i, -1});
    }
    if (a.kind == action_kind::optimizer_step && uses_.reductions && !stage.reduced)
      return needs(a, action_kind::reduce_gradient, a.stage);
    // A step changes this rank's part of the weights: gathered ones would be those of before.
    if (a.kind == action_kind::optimizer_step && stage.gathered) return needs(a, action_kind::reshard, a.stage);
    return true;
  }

  // Two computations, neither of which needs the other.
  constexpr bool pair(const action& a) {
    if (!is_compute(a.kind) || (in_pair_ && a.overlaps_next)) {
      if (in_pair_) --position_;
      return fail(problem::not_a_pair, in_pair_ ? *pair_ : a);
    }
    if (in_pair_ && reads_from(a, *pair_, t_)) return fail(problem::dependent_pair, a, *pair_);
    if (in_pair_ && add_to_one_gradient(a, *pair_)) return fail(problem::pair_of_one_gradient, a, *pair_);
    in_pair_ = a.overlaps_next;
    pair_ = &a;
    return true;
  }

  // Nothing occurs twice and nothing that does not belong, so that all is there if there is as much as should be.
  constexpr bool counts_agree() const {
    int parts = 0;
    int sends = 0;
    for (int s = 0; s < s_; ++s) {
      if (rank_of_[s] != rank_) continue;
      if (t_.has_paths()) return false;  // counted one by one
      const int n = t_.microbatches_of(s);
      parts += t_.forward_only() ? n : 3 * n;
      const action first{action_kind::forward, s, 0};
      if (next(first) >= 0 && !here(next(first))) sends += n;
      if (previous(first) >= 0 && !here(previous(first)) && !t_.forward_only()) sends += n;
    }
    return parts == parts_ && (!uses_.transfers || sends == sends_);
  }

  constexpr bool complete() {
    position_ = -1;
    const bool all_there = counts_agree();
    const kind_bits all =
        t_.forward_only() ? forward_bit : static_cast<kind_bits>(forward_bit | input_bit | weight_bit);
    for (int s = 0; s < t_.stages(); ++s) {
      if (!here(s)) continue;
      for (int i = 0; i < m_ && !all_there; ++i) {
        kind_bits seen = seen_[own_[s] * m_ + i];
        if (seen & backward_bit) seen = static_cast<kind_bits>(seen | input_gradient_bits | weight_gradient_bits);
        if ((seen & all) != all && t_.handles(s, i))
          return absent(!(seen & forward_bit) ? action_kind::forward
                        : !(seen & input_bit) ? action_kind::backward
                                              : action_kind::backward_weight,
                        s, i);
        if (!uses_.transfers || seen == 0) continue;
        if (!(seen & bit(action_kind::send_forward)) && t_.next(s, i) >= 0 && !here(t_.next(s, i)))
          return absent(action_kind::send_forward, s, i);
        if (!(seen & bit(action_kind::send_backward)) && !t_.forward_only() && t_.previous(s, i) >= 0 &&
            !here(t_.previous(s, i)))
          return absent(action_kind::send_backward, s, i);
      }
      if (uses_.reductions && !stages_[own_[s]].reduced) return absent(action_kind::reduce_gradient, s, -1);
      if (uses_.steps && !stages_[own_[s]].stepped) return absent(action_kind::optimizer_step, s, -1);
      if (stages_[own_[s]].gathered) return absent(action_kind::reshard, s, -1);
    }
    return true;
  }
  constexpr bool absent(action_kind kind, int stage, int microbatch) {
    return fail(problem::missing, {}, action{kind, stage, microbatch, -1});
  }

  const table_view& t_;
  table_uses uses_;
  int m_, s_;
  bool one_way_;  // of all microbatches, over all stages
  bool forward_only_;
  const int* rank_of_;
  scratch<int> own_memory_;
  int* own_;  // the place of a stage among those of its rank
  kind_bits* seen_ = nullptr;
  stage_state* stages_ = nullptr;
  // The first of a pair whose second comes next. Not told by a null pointer: g++ with -fsanitize=undefined takes no
  // comparison of a static object's address with null for a constant.
  bool in_pair_ = false;
  const action* pair_ = nullptr;
  report found_{};
  int rank_ = -1;
  int position_ = -1;
  int parts_ = 0;  // F, I and W listed so far, B being two of them
  int sends_ = 0;
};

// The k-th message a rank sends to another must be the k-th that one receives from it. Lists must be sound: then every
// send has its receive, as computations need their receives, and those are all there.
constexpr report check_messages(const table_view& t) {
  report found{};
  const int p = t.ranks();
  const int m = t.microbatches();
  const scratch<int> counts_memory(p);
  const scratch<int> place_memory(2 * t.stages() * m);
  int* const counts = counts_memory.data();  // messages so far between this rank and each other
  int* const place = place_memory.data();    // which message of its channel an input is
  const action* const actions = t.actions().data();
  for (int r = 0; r < p; ++r) {
    for (int other = 0; other < p; ++other) counts[other] = 0;
    for (const action *a = actions + t.offset(r), *end = actions + t.offset(r + 1); a != end; ++a)
      if (is_send(a->kind))
        place[2 * (other_stage(*a, t) * m + a->microbatch) + (a->kind == action_kind::send_forward ? 0 : 1)] =
            counts[a->peer]++;
  }
  for (int r = 0; r < p; ++r) {
    for (int other = 0; other < p; ++other) counts[other] = 0;
    for (const action *a = actions + t.offset(r), *end = actions + t.offset(r + 1); a != end; ++a) {
      if (!is_recv(a->kind) ||
          place[2 * (a->stage * m + a->microbatch) + (a->kind == action_kind::recv_forward ? 0 : 1)] ==
              counts[a->peer]++)
        continue;
      found.what = problem::transfer_order;
      found.rank = r;
      found.position = static_cast<int>(a - actions) - t.offset(r);
      found.where = *a;
      found.other_rank = a->peer;
      int n = counts[a->peer];
      for (const action& sent : t.list(a->peer))
        if (is_send(sent.kind) && sent.peer == r && --n == 0) found.needs = sent;
      return found;
    }
  }
  return found;
}

}  // namespace heddle::inline v0::schedule::detail

// heddle/schedule/check/validate_storage.hpp: checks the reuse of slots and buffers.
#pragma once

#include <heddle/schedule/check/report.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/lower/storage.hpp>

#include <algorithm>

namespace heddle::inline v0::schedule {
namespace detail {

// Walks each rank's list and keeps what lies where.
class storage_check {
 public:
  constexpr storage_check(const table_view& t, const storage_view& s)
      : t_(t), s_(s), first_slot_(t.stages() + 1), slots_(slots_before(t.stages())), buffers_(most_buffers()) {}

  constexpr report run() {
    for (int r = 0; r < t_.ranks() && found_.ok(); ++r) list(r);
    return found_;
  }

 private:
  // A boundary tensor by the action that computed it: the output of F, the input gradient of B or I.
  struct content {
    int tensor = -1;  // -1: nothing
    int writer = -1;  // index of the action that wrote it
    int send = -1;    // the how many-th send of the rank reads it, -1: none yet
  };
  struct kept {
    int microbatch = -1;
    int writer = -1;
  };

  constexpr int slots_before(int stages) {
    for (int s = 0; s < stages; ++s) first_slot_[s + 1] = first_slot_[s] + (std::max)(s_.slots(s), 0);
    return first_slot_[stages];
  }
  constexpr int most_buffers() const {
    int most = 0;
    for (int r = 0; r < t_.ranks(); ++r) most = (std::max)(most, s_.buffers(r));
    return most;
  }

  constexpr bool fail(problem what, int writer = -1, int number = -1) {
    if (!found_.ok()) return false;
    found_.what = what;
    found_.rank = rank_;
    found_.position = k_ - t_.offset(rank_);
    found_.where = t_[k_];
    if (writer >= 0) found_.needs = t_[writer];
    found_.other_position = number;
    return false;
  }

  constexpr void list(int rank) {
    rank_ = rank;
    sends_ = 0;
    for (int b = 0; b < s_.buffers(rank); ++b) buffers_[b] = {};
    int pair = 0;  // how many parts of a pair are open
    for (k_ = t_.offset(rank); k_ < t_.offset(rank + 1); ++k_) {
      if (!begin(t_[k_])) return;
      pair = t_[k_].overlaps_next && pair == 0 ? 1 : pair + 1;
      if (t_[k_].overlaps_next && pair == 1) continue;
      for (int part = k_ - pair + 1; part <= k_; ++part) end(part);
      pair = 0;
    }
  }

  constexpr int tensor(bool up, int stage, int microbatch) const noexcept {
    return 2 * (stage * m_ + microbatch) + (up ? 0 : 1);
  }

  // What an action reads and writes: checked for both parts of a pair before either gives anything back.
  constexpr bool begin(const action& a) {
    const action_storage& at = s_[k_];
    const bool up = is_of_forward(a.kind);
    const int none = -1;
    switch (a.kind) {
      case action_kind::forward:
      case action_kind::backward:
      case action_kind::backward_input: {
        const int from = up ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch);
        const int to = up ? t_.next(a.stage, a.microbatch) : t_.previous(a.stage, a.microbatch);
        if (!has(at.input, from >= 0, s_.buffers(rank_)) || !has(at.output, to >= 0, s_.buffers(rank_)) ||
            !has(at.saved, true, s_.slots(a.stage)))
          return false;
        if (from >= 0 && !reads(at.input, tensor(up, from, a.microbatch))) return false;
        if (to >= 0 && !writes(at.output, tensor(up, a.stage, a.microbatch))) return false;
        return up ? fills(a, at.saved) : keeps(a, at.saved);
      }
      case action_kind::backward_weight:
      case action_kind::recompute:
      case action_kind::offload:
      case action_kind::reload:
        return has(at.input, false, none) && has(at.output, false, none) && has(at.saved, true, s_.slots(a.stage)) &&
               keeps(a, at.saved);
      case action_kind::recv_forward:
      case action_kind::recv_backward:
        return has(at.saved, false, none) && has(at.output, false, none) && has(at.input, true, s_.buffers(rank_)) &&
               writes(at.input, tensor(up, other_stage(a, t_), a.microbatch));
      case action_kind::send_forward:
      case action_kind::send_backward:
        if (!has(at.saved, false, none) || !has(at.input, false, none) || !has(at.output, true, s_.buffers(rank_)) ||
            !reads(at.output, tensor(up, a.stage, a.microbatch)))
          return false;
        buffers_[at.output].send = sends_++;
        return true;
      default:
        return has(at.saved, false, none) && has(at.input, false, none) && has(at.output, false, none);
    }
  }

  // What an action does not need any more.
  constexpr void end(int k) {
    const action& a = t_[k];
    const action_storage& at = s_[k];
    if (is_compute(a.kind) && at.input >= 0) buffers_[at.input] = {};
    if (gives_up(a.kind)) slots_[first_slot_[a.stage] + at.saved] = {};
  }
  constexpr bool gives_up(action_kind k) const noexcept {
    return k == action_kind::backward || k == action_kind::backward_weight ||
           (k == action_kind::forward && t_.forward_only());
  }

  constexpr bool has(int number, bool needed, int count) {
    return (needed ? number >= 0 && number < count : number == -1) || fail(problem::storage_misfit);
  }
  constexpr bool reads(int buffer, int tensor) {
    const content& c = buffers_[buffer];
    return (c.tensor == tensor && c.send < 0) || fail(problem::buffer_content, c.writer, buffer);
  }
  // A send is over once `sends_in_flight` others have been started behind it.
  constexpr bool writes(int buffer, int tensor) {
    content& c = buffers_[buffer];
    if (c.tensor >= 0 && (c.send < 0 || c.send >= sends_ - s_.sends_in_flight()))
      return fail(problem::buffer_overwritten, c.writer, buffer);
    c = {tensor, k_, -1};
    return true;
  }
  constexpr bool fills(const action& a, int slot) {
    kept& place = slots_[first_slot_[a.stage] + slot];
    if (place.microbatch >= 0) return fail(problem::slot_overwritten, place.writer, slot);
    place = {a.microbatch, k_};
    return true;
  }
  constexpr bool keeps(const action& a, int slot) {
    const kept& place = slots_[first_slot_[a.stage] + slot];
    return place.microbatch == a.microbatch || fail(problem::slot_content, place.writer, slot);
  }

  const table_view& t_;
  const storage_view& s_;
  int m_ = t_.microbatches();
  scratch<int> first_slot_;
  scratch<kept> slots_;
  scratch<content> buffers_;
  int rank_ = 0;
  int k_ = 0;
  int sends_ = 0;
  report found_{};
};

}  // namespace detail

/// The first problem of the storage of a valid table: a place where none belongs or none where one does, a number that
/// does not exist, a slot or buffer that is written while what lies there is still needed, or that does not hold what
/// is read. A receive writes from where it stands, a send reads until `sends_in_flight` others have been started behind
/// it, the parts of a pair read and write until both have ended.
/// `other_position` of the report is the number of the slot or buffer, `needs` the action that wrote what lies there.
[[nodiscard]] constexpr report check_storage(table_view table, storage_view storage) {
  if (storage.fits(table) && storage.sends_in_flight() >= 0) return detail::storage_check(table, storage).run();
  report found{};
  found.what = problem::storage_misfit;
  return found;
}

}  // namespace heddle::inline v0::schedule

// heddle/schedule/generate/v_block.hpp: V schedules of one repeated block of actions.
#pragma once

#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/table.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::schedule::detail {

// The slots at which a rank begins F, F', I' and I of the first microbatch; F' and I' are of the stage on the way up.
using v_block = std::array<int, 4>;

// Builds the lists of all ranks. First every microbatch repeats the block six slots later and each W takes the first
// free slot behind its I: that is the steady state. Then the actions of the warm-up and of the cool-down move to
// earlier free slots as long as no rank holds more activations than the fullest did before: once with W in place, once
// more in the cool-down with W filling what is left. All actions take one slot; microbatches of one stage stay in
// order.
// Source: Qi et al. 2024, arXiv:2405.15362, section 4 (building blocks, repeating, squeezing, reordering).
class v_block_packer {
 public:
  // `block(rank)` gives the v_block of a rank. The four slots of a rank differ modulo 6.
  template <class Block>
  constexpr v_block_packer(int ranks, int microbatches, const Block& block)
      : p_(ranks),
        m_(microbatches),
        slots_(checked_slots(ranks, microbatches)),
        grid_memory_(p_ * slots_),
        start_memory_(p_ * kinds * m_, unset),
        grid_(grid_memory_.data()),
        start_(start_memory_.data()) {
    for (int r = 0; r < p_; ++r) {
      const v_block at = block(r);
      for (int k = 0; k < kinds; ++k)
        for (int i = 0; i < m_; ++i)
          cell(r, start(r, k, i) = at[static_cast<std::size_t>(k)] + 6 * i) = static_cast<signed char>(k + 1);
    }
  }

  constexpr rank_lists run() {
    put_weights();
    pack(true);
    squeeze();
    pack(false);
    put_weights();
    squeeze();
    return lists();
  }

 private:
  // What a slot holds: nothing, one of the four of the block, or a W of either stage.
  static constexpr int kinds = 4;
  static constexpr signed char empty = 0, first_forward = 1, last_forward = 2, first_input = 3, last_input = 4;
  static constexpr signed char some_weight = 5;

  static constexpr int checked_slots(int ranks, int microbatches) {
    const std::int64_t slots = 8 * std::int64_t{microbatches} + 6 * std::int64_t{ranks} + 12;
    if (slots * ranks > std::int64_t{1} << 28)
      throw schedule_error("heddle: a V schedule of " + std::to_string(microbatches) + " microbatches on " +
                           std::to_string(ranks) + " pipeline ranks is too large to be packed");
    return static_cast<int>(slots);
  }

  constexpr signed char& cell(int rank, int slot) const noexcept { return grid_[rank * slots_ + slot]; }
  constexpr int& start(int rank, int kind, int i) const noexcept { return start_[(rank * kinds + kind) * m_ + i]; }

  // The first slot at which the inputs of an action are there; the microbatch before it must have begun, too.
  constexpr int ready(int rank, int kind, int i) const noexcept {
    const int neighbour = kind % 2 == 0 ? rank - 1 : rank + 1;  // F and I' run down the ranks, F' and I up
    const int* const own = start_ + (rank * kinds + kind) * m_ + i;
    int after = -1;
    if (neighbour >= 0 && neighbour < p_)
      after = start_[(neighbour * kinds + kind) * m_ + i];
    else if (kind > 0)
      after = own[-m_];
    if (i > 0 && own[-1] > after) after = own[-1];
    return after + 1;
  }

  // Each W in the first free slot behind its I. `end_` becomes the first slot that no rank uses.
  constexpr void put_weights() {
    end_ = 0;
    for (int r = 0; r < p_; ++r) {
      int waiting = 0;
      int last = 0;
      for (int k = 0; k < kinds; ++k) last = start(r, k, m_ - 1) > last ? start(r, k, m_ - 1) : last;
      signed char* c = grid_ + r * slots_;
      for (int s = 0; s <= last || waiting > 0; ++s, ++c) {
        if (*c >= first_input) {
          ++waiting;
        } else if (*c == empty && waiting > 0) {
          *c = some_weight;
          --waiting;
          last = s > last ? s : last;
        }
      }
      end_ = last + 1 > end_ ? last + 1 : end_;
    }
  }

  // Every action as early as its inputs and the order of its rank allow. Takes W out again.
  constexpr void squeeze() {
    const scratch<int> rank_end_memory(p_);
    const scratch<int> done_memory(p_ * kinds);
    int* const rank_end = rank_end_memory.data();
    int* const done = done_memory.data();
    for (int s = 0; s < end_; ++s) {
      for (int r = 0; r < p_; ++r) {
        signed char* const at = grid_ + (r * slots_ + s);
        const signed char c = *at;
        if (c == empty) continue;
        *at = empty;
        if (c == some_weight) {
          ++rank_end[r];
          continue;
        }
        const int k = c - 1;
        const int i = done[r * kinds + k]++;
        const int inputs = ready(r, k, i);
        const int to = inputs > rank_end[r] ? inputs : rank_end[r];
        start_[(r * kinds + k) * m_ + i] = to;
        rank_end[r] = to + 1;
        at[to - s] = c;
      }
    }
  }

  // Counts the activations of a rank and the Ws that wait behind each slot from `from` on; without W in place, each
  // takes the first free slot. Says false where there are more than `bound`. Ends behind slot `until` as soon as
  // nothing differs from what was counted before. Only looks unless told to `keep` the counts.
  constexpr bool count(int rank, int from, int until, int bound, bool keep) {
    int live = from > 0 ? live_[from - 1] : 0;
    int waiting = from > 0 ? waiting_[from - 1] : 0;
    const signed char* c = grid_ + rank * slots_ + from;
    for (int s = from; s < end_; ++s, ++c) {
      if (*c == empty) {
        if (waiting > 0) {
          --live;
          --waiting;
        }
      } else if (*c <= last_forward) {
        if (++live > bound) return false;
      } else if (*c == some_weight) {
        --live;
      } else if (implied_) {
        ++waiting;
      }
      if (s >= until && live_[s] == live && waiting_[s] == waiting) return true;
      if (keep) {
        live_[s] = live;
        waiting_[s] = waiting;
      }
    }
    return true;
  }

  // Moves what can begin earlier: in the warm-up, which lasts until rank 0 begins its first I, and in the cool-down,
  // from the last F of rank 0 on. Every rank is done by itself in the order of slots, all ranks side by side.
  constexpr void pack(bool with_weights) {
    implied_ = !with_weights;
    const scratch<int> lives(p_ * end_, unset), waitings(p_ * end_, unset);
    live_ = lives.data();
    waiting_ = waitings.data();
    int bound = 0;
    for (int r = 0; r < p_; ++r, live_ += end_, waiting_ += end_) {
      count(r, 0, end_, 2 * m_, true);
      for (int s = 0; s < end_; ++s) bound = live_[s] > bound ? live_[s] : bound;
    }
    const scratch<int> done_memory(p_ * (kinds + 1));
    int* const done = done_memory.data();
    const scratch<int> inputs(p_ * 2 * m_, unset);  // when the k-th I or I' of a rank begins
    const scratch<int> inputs_done(p_);
    bool steady = false, cool_down = false;
    for (int s = 0; s < end_; ++s) {
      live_ = lives.data();
      waiting_ = waitings.data();
      for (int r = 0; r < p_; ++r, live_ += end_, waiting_ += end_) {
        const signed char c = cell(r, s);
        if (c == empty) continue;
        const int k = c - 1;
        const int i = done[r * (kinds + 1) + k]++;
        if (r == 0 && k == 3 && i == 0) {
          steady = true;
          cool_down = done[0] == m_;
        }
        int to = s;
        if ((steady && cool_down) || (!steady && with_weights)) {
          const int earliest = c == some_weight ? inputs[r * 2 * m_ + i] + 1 : ready(r, k, i);
          to = implied_ ? move_in_gaps(r, s, earliest, bound) : move(r, s, earliest, bound);
          if (c != some_weight) start(r, k, i) = to;
        }
        if (c == first_input || c == last_input) note_input(inputs.data() + r * 2 * m_, inputs_done[r]++, to);
        if (steady && r == 0 && k == 0 && i == m_ - 1) cool_down = true;
      }
    }
  }

  // Keeps the list of begun I and I' sorted: one that was moved may have overtaken others.
  static constexpr void note_input(int* inputs, int n, int at) {
    for (; n > 0 && inputs[n - 1] > at; --n) inputs[n] = inputs[n - 1];
    inputs[n] = at;
  }

  // Moves what stands at `slot` to the earliest free slot from `earliest` on that leaves at most `bound` activations
  // alive, and returns that slot. Here with W in place: a forward that moves is alive for longer, a W for less long.
  constexpr int move(int rank, int slot, int earliest, int bound) {
    const signed char c = cell(rank, slot);
    const bool forward = c <= last_forward;
    int to = slot;
    for (int s = slot - 1; s >= earliest && !(forward && live_[s] + 1 > bound); --s)
      if (cell(rank, s) == empty) to = s;
    for (int s = to; s < slot; ++s) live_[s] += forward ? 1 : c == some_weight ? -1 : 0;
    cell(rank, slot) = empty;
    cell(rank, to) = c;
    return to;
  }
  // The same where each W takes the first free slot, which then may be another one.
  constexpr int move_in_gaps(int rank, int slot, int earliest, int bound) {
    const signed char c = cell(rank, slot);
    for (int s = earliest; s < slot; ++s) {
      if (cell(rank, s) != empty) continue;
      cell(rank, slot) = empty;
      cell(rank, s) = c;
      if (count(rank, s, slot, bound, false)) {
        count(rank, s, slot, bound, true);
        return s;
      }
      cell(rank, s) = empty;
      cell(rank, slot) = c;
    }
    return slot;
  }

  // The lists in the order of the slots, W in free slots, those of the stage on the way up first.
  constexpr rank_lists lists() const {
    rank_lists out;
    out.actions.assign(static_cast<std::size_t>(6 * p_ * m_), action{});
    out.offsets.assign(static_cast<std::size_t>(p_) + 1, 0);
    action* to = out.actions.data();
    for (int r = 0; r < p_; ++r) {
      const int down = r, up = 2 * p_ - 1 - r;
      int done[kinds]{}, weights[2]{};
      const auto weight = [&] {
        const int w = weights[0] < done[2] ? 0 : 1;
        *to++ = {action_kind::backward_weight, w == 0 ? up : down, weights[w]++};
      };
      for (int s = 0; s < end_; ++s) {
        const signed char c = cell(r, s);
        if (c != empty)
          *to++ = {c <= last_forward ? action_kind::forward : action_kind::backward_input,
                   c == first_forward || c == last_input ? down : up, done[c - 1]++};
        else if (weights[0] < done[2] || weights[1] < done[3])
          weight();
      }
      while (weights[0] < m_ || weights[1] < m_) weight();
      out.offsets.data()[r + 1] = 6 * m_ * (r + 1);
    }
    return out;
  }

  int p_, m_, slots_;
  int end_ = 0;
  bool implied_ = false;  // whether W is not in place, and takes free slots
  scratch<signed char> grid_memory_;
  scratch<int> start_memory_;
  signed char* grid_;
  int* start_;
  int* live_ = nullptr;  // of the rank at hand
  int* waiting_ = nullptr;
};

}  // namespace heddle::inline v0::schedule::detail

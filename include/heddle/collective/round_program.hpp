// heddle/collective/round_program.hpp: one rank's part of a round table as a list of steps.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/collective/rounds.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Which of the caller's buffers an address is in.
enum class round_buffer : std::uint8_t { in, out, scratch };

/// What a step of a bound program does. `a`, `b` and `to` are offsets in elements.
enum class round_action : std::uint8_t {
  receive,       ///< starts to receive `count` elements from `peer` at `to`
  receive_now,   ///< receives them
  send,          ///< starts to send `count` elements from `a` to `peer`
  send_now,      ///< sends them
  wait_receive,  ///< waits for receive number `peer` of this round
  wait_sends,    ///< waits for all sends
  fold,          ///< to = a op b, element by element; `to` is `a`, `b` or neither of them
  copy,          ///< to = a
  fill,          ///< to = the operator's identity
};

/// One step of a bound program: an action, its peer, and the places of its operands and result.
struct round_step {
  round_action what = round_action::copy;
  round_buffer to_in = round_buffer::scratch;
  round_buffer a_in = round_buffer::scratch;
  round_buffer b_in = round_buffer::scratch;
  int peer = 0;
  std::int64_t to = 0;
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t count = 0;
  friend constexpr bool operator==(const round_step&, const round_step&) = default;
};

/// How many elements each block has. Units: elements.
struct block_sizes {
  /// One vector of `elements`, cut evenly: all_reduce, reduce, broadcast, scans.
  static block_sizes vector(std::int64_t elements) { return {elements, {}, {}, {}}; }
  /// Every block has `elements`: reduce_scatter, all_gather, gather, scatter, all_to_all.
  static block_sizes equal(std::int64_t elements) { return {elements, {}, {}, {}}; }
  /// Block r has counts[r]: the same with a count per rank. all_to_all: what this rank sends to each rank, what it gets
  /// from each, and where blocks pass through other ranks all counts, `all[s * ranks + d]`.
  static block_sizes counted(std::span<const std::int64_t> counts) { return {-1, counts, {}, {}}; }
  static block_sizes counted(std::span<const std::int64_t> sent, std::span<const std::int64_t> received,
                             std::span<const std::int64_t> all = {}) {
    return {-1, sent, received, all};
  }

  std::int64_t elements = 0;  // -1: counted
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> received;
  std::span<const std::int64_t> all;
};

/// A program whose addresses are known: what `execute_rounds` runs.
struct bound_rounds {
  std::vector<round_step> steps;
  std::int64_t scratch = 0;  ///< elements of scratch memory that it needs
  int receives = 0;          ///< most that are under way at a time
  int sends = 0;
};

/// One rank's part of a round table, for any number of elements.
///
/// Receives go straight to the output and sends come straight from input or output where a message's items lie together
/// there; otherwise they use scratch memory, which is used again as soon as its values are dead. Folds go into the
/// output where the rank gets the item and into the message that arrived elsewhere, so that the input is never written.
/// In each round all receives are started before the first send.
class round_program {
 public:
  round_program() = default;
  /// `in_place`: the input is the output (all_reduce, reduce at the root, scans), or the output the own block of the input
  /// (reduce_scatter). For other collectives it does not matter.
  round_program(round_view view, int rank, bool in_place);

  comm_operation what() const noexcept { return what_; }
  int ranks() const noexcept { return ranks_; }
  int rank() const noexcept { return rank_; }
  /// all_to_all: whether blocks pass through ranks that neither have nor get them. The same on every rank.
  bool relays() const noexcept { return relays_; }

  /// Puts addresses in. `bound` keeps its memory, for use again.
  void bind(const block_sizes& sizes, bound_rounds& bound) const;
  bound_rounds bind(const block_sizes& sizes) const {
    bound_rounds bound;
    bind(sizes, bound);
    return bound;
  }

 private:
  // Where an item lies: a buffer of the caller (`at` is the item), or index `at` of a region of scratch memory.
  struct place {
    static constexpr int none = -1, in = 0, out = 1, first_region = 2;
    int buffer = none;
    int at = 0;
    friend constexpr bool operator==(const place&, const place&) = default;
  };
  // Consecutive items in scratch memory. Regions that do not live at the same time may share a slot.
  struct region {
    int first = 0;  // in pool_
    int count = 0;
    int slot = 0;
    int values = 0;  // items whose value lies here
    bool held = false;
  };
  struct step {
    round_action what = round_action::copy;
    int peer = 0;
    place to{}, a{}, b{};
    int first = 0;  // in pool_: the items of a message
    int count = 0;
    int item = 0;  // of a fold or copy
  };

  int block_of(int item) const { return item / parts_; }
  bool pairwise() const { return what_ == comm_operation::all_to_all; }

  // Whether this rank has the item at the beginning, and whether it gets it.
  bool has(int item) const { return detail::has_block(what_, ranks_, root_, rank_, block_of(item)); }
  bool gets(int item) const { return detail::has_block(what_, ranks_, root_, rank_, block_of(item), true); }
  // Items of these collectives are copied to the output first thing, if this rank both has and gets them.
  bool only_moves() const {
    return what_ == comm_operation::all_gather || what_ == comm_operation::gather || what_ == comm_operation::scatter ||
           what_ == comm_operation::all_to_all;
  }

  bool follows(const place& before, const place& next) const {
    if (before.buffer != next.buffer) return false;
    if (next.buffer != place::out || !pairwise()) return next.at == before.at + 1;
    const auto at = [this](int item) { return block_of(item) / ranks_ * parts_ + item % parts_; };
    return at(next.at) == at(before.at) + 1;
  }

  int pooled(std::span<const int> items) {
    const int first = static_cast<int>(pool_.size());
    pool_.insert(pool_.end(), items.begin(), items.end());
    return first;
  }

  // --- compilation ---
  struct outgoing {
    const round_transfer* message = nullptr;
    int region = -1;  // where it is being gathered, if that has begun
  };
  struct state {
    std::vector<place> at;            // of each item's value
    std::vector<int> sent, received;  // the last round (+ 1) in which this rank sends the item; how often it arrives
    std::vector<int> arrivals_in;     // the round (+ 1) that `received` is about
    std::vector<int> last;            // the last round in which the item leaves or arrives
    std::vector<int> live, free_slots, slot_items;
    std::vector<const round_transfer*> in, out;
    std::vector<outgoing> messages;  // all that this rank sends
    std::size_t gone = 0;            // of them
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  int new_region(state& s, int first, int count);

  void move_to(state& s, int item, place to);

  void free_dead(state& s);

  // Items that only pass through this rank: if the next message they leave in carries more than these, they are received
  // where they lie in it. The first of their places, or none.
  place on_the_way(round_view view, state& s, std::span<const int> list) {
    for (std::size_t m = s.gone; m < s.messages.size(); ++m) {
      const std::span<const int> whole = view.items_of(*s.messages[m].message);
      for (std::size_t at = 0; at < whole.size(); ++at) {
        if (whole[at] != list[0]) continue;
        if (whole.size() <= list.size() || whole.size() - at < list.size() ||
            !std::equal(list.begin(), list.end(), whole.begin() + static_cast<std::ptrdiff_t>(at)))
          return {};
        int& region = s.messages[m].region;
        if (region < 0) {
          region = new_region(s, pooled(whole), static_cast<int>(whole.size()));
          regions_[index(region)].held = true;
        }
        return {place::first_region + region, static_cast<int>(at)};
      }
    }
    return {};
  }

  void copy(int item, place from, place to) {
    steps_.push_back({.what = round_action::copy, .to = to, .a = from, .item = item});
  }

  void compile(round_view view);

  void compile_round(round_view view, state& s, int k);

  comm_operation what_ = comm_operation::barrier;
  int ranks_ = 1, root_ = 0, blocks_ = 1, parts_ = 1, rank_ = 0;
  bool in_place_ = false, relays_ = false;
  int slots_ = 0, receives_ = 0, sends_ = 0;
  std::vector<step> steps_;
  std::vector<region> regions_;
  std::vector<int> pool_;
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/collective/impl/round_program.hpp>
#endif

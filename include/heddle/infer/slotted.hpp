// heddle/infer/slotted.hpp: a cache policy that keeps running sequences in one window.
#pragma once

#include <heddle/core/min_move_window.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// Slots of a whole context, one for a sequence. A new sequence gets the first free slot between two that are taken, else the one after the last,
/// else the one before the first, so that slots in use are near each other: the window. A sequence that ends at an edge makes the window smaller, one that ends within it
/// leaves a hole.
class window_blocks : public detail::whole_context_slots {
 public:
  explicit window_blocks(const step_limits& l)
      : whole_context_slots(l), slots_(static_cast<std::size_t>(l.blocks / per_slot_), 0) {}
  /// Uses at most this many slots, at least one.
  void use_slots(std::int64_t slots) {
    slots_.resize((std::min)(slots_.size(), static_cast<std::size_t>((std::max)(slots, std::int64_t{1}))));
  }
  bool start(sequence_blocks& s, std::span<const std::int32_t>, std::int64_t) {
    const std::int64_t slot = next_slot();
    if (slot < 0) return false;
    s = {};
    place(s, slot);
    return true;
  }
  void release(sequence_blocks& s) {
    if (!s.blocks.empty()) at(slot_of(s)) = 0;
    s = {};
  }
  cache_counts counts() const noexcept {
    return {.blocks = std::ssize(slots_) * per_slot_,
            .used = static_cast<std::int64_t>(std::count(slots_.begin(), slots_.end(), taken)) * per_slot_};
  }

  /// Slots of the cache.
  std::int64_t slots() const noexcept { return std::ssize(slots_); }
  /// The slot of a sequence that has one.
  std::int64_t slot_of(const sequence_blocks& s) const noexcept { return s.blocks.front() / per_slot_; }
  /// The block that a slot begins with.
  std::int32_t first_block(std::int64_t slot) const noexcept { return static_cast<std::int32_t>(slot * per_slot_); }
  /// Free slots between the first and the last that are taken, ascending.
  std::span<const std::int64_t> holes() {
    holes_.clear();
    const auto [low, high] = window();
    for (std::int64_t i = low; i < high; ++i)
      if (at(i) != taken) holes_.push_back(i);
    return holes_;
  }
  /// Moves sequences so that no hole is left, with the fewest moves (`min_move_window`); earlier copies must have been made. Appends the copies of the blocks in use; slots that they read stay out
  /// of use until `closed()`. `sequences`: pointers to those that have slots, with members `blocks` and `computed`, the number of tokens in the cache. Returns the number of moves.
  template <class Sequences>
  std::int64_t close(const Sequences& sequences, std::vector<block_copy>& copies) {
    closed();
    const slot_window w = min_move_window(slots_);
    for (const slot_move& m : w.moves)
      for (const auto& s : sequences) {
        if (s->blocks.blocks.empty() || slot_of(s->blocks) != m.from) continue;
        for (std::int64_t b = 0; b < detail::blocks_of_tokens(s->computed, limits_.block_rows); ++b)
          copies.push_back(
              {static_cast<std::int32_t>(first_block(m.from) + b), static_cast<std::int32_t>(first_block(m.to) + b)});
        s->blocks.blocks.clear();
        place(s->blocks, m.to);
        at(m.from) = left;
        break;
      }
    return std::ssize(w.moves);
  }
  /// The copies were made.
  void closed() { std::replace(slots_.begin(), slots_.end(), left, std::uint8_t{0}); }

 private:
  static constexpr std::uint8_t taken = 1, left = 2;  // left: its rows are to be copied

  std::uint8_t& at(std::int64_t slot) noexcept { return slots_[static_cast<std::size_t>(slot)]; }
  struct edges {
    std::int64_t low = 0;
    std::int64_t high = 0;  // after the last
  };
  edges window() const noexcept {
    edges e;
    for (std::int64_t i = 0; i < slots(); ++i)
      if (slots_[static_cast<std::size_t>(i)] == taken) {
        if (e.high == 0) e.low = i;
        e.high = i + 1;
      }
    return e;
  }
  std::int64_t next_slot() {
    const auto [low, high] = window();
    for (std::int64_t i = low; i < slots() && i <= high; ++i)
      if (at(i) == 0) return i;
    return low > 0 && at(low - 1) == 0 ? low - 1 : -1;
  }
  void place(sequence_blocks& s, std::int64_t slot) {
    for (std::int64_t i = 0; i < per_slot_; ++i) s.blocks.push_back(static_cast<std::int32_t>(first_block(slot) + i));
    at(slot) = taken;
  }

  std::vector<std::uint8_t> slots_;
  std::vector<std::int64_t> holes_{};
};

/// A sequence has a slot of a whole context, and slots in use lie in one window: what `temporal_fusion` needs. Memory is constant.
struct slotted {
  using kind = cache_kind;
  using blocks = window_blocks;
  using capabilities = infer::capabilities<truncate, tree_rows, slot_window_moves>;
  using needs = infer::capabilities<>;
};

}  // namespace heddle::inline v0::infer

// heddle/infer/prefix_shared.hpp: a cache whose sequences share blocks of equal prefixes.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/infer/cache.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Blocks with counts of the sequences that hold them. Full blocks are listed in a tree by their tokens and those before; a sequence that begins
/// with the tokens of listed blocks holds these blocks too, and where it differs within a block, it has a copy of that block and
/// overwrites the rest (copy on write). Blocks that no sequence holds stay listed, and are taken when no others are left: the one that was
/// released first, and blocks behind another before it. Two sequences that compute equal blocks keep one of them.
/// Source: Zheng et al., "SGLang", 2024, arXiv:2312.07104, section 3 (radix attention).
class shared_blocks {
 public:
  explicit shared_blocks(const step_limits& l);
  std::int64_t tokens_per_sequence() const noexcept {
    return (std::min)(limits_.context, limits_.blocks * limits_.block_rows);
  }
  /// A block for each of the others that run is left, so that what begins now is not sent back by their next tokens.
  bool start(sequence_blocks& s, std::span<const std::int32_t> tokens, std::int64_t running);
  bool grow(sequence_blocks& s, std::int64_t tokens);
  void computed(sequence_blocks& s, std::span<const std::int32_t> tokens);
  void shrink(sequence_blocks& s, std::int64_t tokens);
  void copied(sequence_blocks& s);
  void release(sequence_blocks& s);
  /// Nothing is listed any more, and sequences that began before list nothing: what they compute depends on what they had.
  void forget();
  cache_counts counts() const noexcept;
  /// Of layers that keep states: whether a snapshot of the state behind so many tokens of a sequence is to be kept; keeps this one, until room is needed.
  bool keeps_state_behind(const sequence_blocks& s, std::int64_t tokens) const;
  void keep_state(const sequence_blocks& s, std::int64_t tokens, std::int64_t state);
  /// Gives the state of the snapshot that was used least lately, which is no more; -1: there is none that nobody is about to read.
  std::int64_t drop_state();
  /// Appends the states of snapshots that are no more.
  void take_dropped(std::vector<std::int32_t>& states) {
    states.insert(states.end(), dropped_.begin(), dropped_.end());
    dropped_.clear();
  }
  /// Sequences that hold a block.
  std::int64_t holders(std::int32_t of) const { return blocks_.at(static_cast<std::size_t>(of)).holders; }

 private:
  struct token_order {
    using is_transparent = void;
    bool operator()(std::span<const std::int32_t> a, std::span<const std::int32_t> b) const noexcept {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  using listing = std::map<std::vector<std::int32_t>, std::int32_t, token_order>;
  // A block's `parent` is held by whoever holds the block, so `unused_` has children before their parents.
  struct block {
    std::int64_t holders = 0;
    bool listed = false;
    std::int32_t parent = -1;
    listing::iterator place{};   // in the parent's `after`
    listing after{};             // listed blocks behind this one
    std::uint64_t released = 0;  // key in `unused_`
    std::int64_t state = -1;     // a snapshot of the state behind the block's last token
    std::int64_t readers = 0;    // sequences that begin with it, before it was copied
    std::uint64_t read = 0;      // key in `snapshots_`
  };
  struct beginning {
    std::vector<std::int32_t> blocks{};
    std::int32_t copied = -1;  // a block of which the first tokens are equal
    std::int64_t tokens = 0;
    std::int64_t alike = 0;  // of these, and those that are listed without a snapshot
  };

  block& at(std::int32_t b) { return blocks_[static_cast<std::size_t>(b)]; }
  listing& after(std::int32_t parent) { return parent < 0 ? first_ : at(parent).after; }
  std::int64_t obtainable() const noexcept { return static_cast<std::int64_t>(free_.size() + unused_.size()); }
  std::int64_t rows_of(const beginning& b) const noexcept {
    return static_cast<std::int64_t>(b.blocks.size()) * limits_.block_rows;
  }
  beginning look_up(std::span<const std::int32_t> tokens);
  bool fits(const beginning& b, std::int64_t blocks, std::int64_t running);
  void hold(std::int32_t b);
  void drop(std::int32_t b);
  std::int32_t take();
  const block* ends_behind(const sequence_blocks& s, std::int64_t tokens) const;
  void read_state(std::int32_t b);
  void lose_state(block& b);

  step_limits limits_;
  std::vector<block> blocks_;
  listing first_{};
  std::vector<std::int32_t> free_{};
  std::map<std::uint64_t, std::int32_t> unused_{};     // listed, held by none, the first to go first
  std::map<std::uint64_t, std::int32_t> snapshots_{};  // the first to go first
  std::vector<std::int32_t> dropped_{};
  std::uint64_t releases_ = 0, reads_ = 0;
  std::int64_t weights_ = 0;  // how often `forget` was called
  std::int64_t looked_up_ = 0;
  std::int64_t found_ = 0;
};

/// Paged, and sequences that begin alike share the blocks of their beginnings, also with those that ended, until the room is needed.
struct prefix_shared {
  using kind = cache_kind;
  using blocks = shared_blocks;
  using capabilities = infer::capabilities<truncate, share_blocks, tree_rows>;
  using needs = infer::capabilities<causal_rows>;
};

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/prefix_shared.hpp>
#endif

// heddle/infer/cache.hpp: cache policies: blocks of a sequence, by context or block by block.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/infer/kv.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

struct cache_kind {};  ///< kind of policies that give blocks of the cache to sequences

/// Blocks of one sequence. `copy.from` is -1 unless a block must be copied to one of the sequence's before its rows are written.
struct sequence_blocks {
  std::vector<std::int32_t> blocks{};
  std::int64_t cached = 0;  ///< tokens whose rows were in the cache when the sequence began
  std::int64_t listed = 0;  ///< blocks at the beginning that others can find
  std::int64_t weights =
      0;  ///< how often the weights had changed when the sequence began, for a policy whose blocks others can find
  block_copy copy{.from = -1, .to = -1};
  std::int64_t prompt = 0;  ///< tokens with which the sequence began, for a policy that gives blocks back
  std::int64_t gone = 0;    ///< blocks at the beginning that were given back
  std::int64_t state =
      -1;  ///< of those that layers keep, the snapshot with which the sequence begins, until it was copied
  std::vector<std::int64_t> cuts{};  ///< tokens behind which a snapshot of its state is to be kept, ascending
};

/// Numbers of a cache. Units: blocks, tokens.
struct cache_counts {
  std::int64_t blocks = 0;
  std::int64_t used = 0;       ///< held by sequences
  std::int64_t kept = 0;       ///< of no sequence, but found again by a prompt that begins alike, until they are needed
  std::int64_t looked_up = 0;  ///< tokens that were looked for in the cache
  std::int64_t found = 0;      ///< of these, tokens that were there
  friend bool operator==(const cache_counts&, const cache_counts&) = default;
};

/// The blocks of a cache policy, which an engine asks for room.
/// `start(s, tokens, running)`: gives an empty `s` blocks for `tokens` beside `running` others, and sets `cached`, less than the number of tokens;
/// false, and `s` stays empty, if there is no room. Alone it has room for `tokens_per_sequence()` tokens.
/// `grow(s, n)`: blocks for n tokens, or false and no change. `computed(s, tokens)`: the rows of `tokens` are in the cache now.
/// `shrink(s, n)`: no blocks beyond those of n tokens. `copied(s)`: the copy was made. `release(s)`: `s` is empty again.
/// Optional: `forget()`: no sequence that begins later finds rows that were computed before.
template <class C>
concept cache_blocks =
    std::constructible_from<C, const step_limits&> &&
    requires(C& c, const C& that, sequence_blocks& s, std::span<const std::int32_t> tokens, std::int64_t n) {
      { that.tokens_per_sequence() } -> std::same_as<std::int64_t>;
      { c.start(s, tokens, n) } -> std::same_as<bool>;
      { c.grow(s, n) } -> std::same_as<bool>;
      c.computed(s, tokens);
      c.shrink(s, n);
      c.copied(s);
      c.release(s);
      { that.counts() } -> std::same_as<cache_counts>;
    };

/// A policy whose `blocks` manage the cache and whose `capabilities` say what they can do; `needs` are those of the runner that it
/// depends on.
template <class P>
concept cache_policy =
    policy<P> && std::same_as<typename P::kind, cache_kind> && cache_blocks<typename P::blocks> && requires {
      typename P::capabilities;
      typename P::needs;
    };

namespace detail {
constexpr std::int64_t blocks_of_tokens(std::int64_t tokens, std::int64_t block_rows) noexcept {
  return (tokens + block_rows - 1) / block_rows;
}
inline void require_cache(const step_limits& l, std::int64_t least) {
  if (l.block_rows < 1 || l.context < 1 || l.blocks < least)
    throw config_error("heddle: the cache should have at least " + std::to_string(least) +
                       " blocks of at least one token, and a context of at least one; got " + std::to_string(l.blocks) +
                       " blocks of " + std::to_string(l.block_rows) + " tokens and a context of " +
                       std::to_string(l.context));
}
// What slots of a whole context share: a sequence has its slot until it ends.
class whole_context_slots {
 public:
  explicit whole_context_slots(const step_limits& l)
      : limits_(l), per_slot_((require_cache(l, 1), blocks_of_tokens(l.context, l.block_rows))) {
    require_cache(l, per_slot_);
  }
  std::int64_t tokens_per_sequence() const noexcept { return limits_.context; }
  bool grow(sequence_blocks&, std::int64_t tokens) const noexcept { return tokens <= limits_.context; }
  void computed(sequence_blocks&, std::span<const std::int32_t>) const noexcept {}
  void shrink(sequence_blocks&, std::int64_t) const noexcept {}
  void copied(sequence_blocks&) const noexcept {}

 protected:
  step_limits limits_;
  std::int64_t per_slot_;
};
}  // namespace detail

/// Slots of a whole context: blocks that follow one another, one slot for a sequence.
class slot_blocks : public detail::whole_context_slots {
 public:
  explicit slot_blocks(const step_limits& l) : whole_context_slots(l), slots_(l.blocks / per_slot_) {
    for (std::int64_t i = slots_; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i * per_slot_));
  }
  bool start(sequence_blocks& s, std::span<const std::int32_t>, std::int64_t) {
    if (free_.empty()) return false;
    s = {};
    for (std::int64_t i = 0; i < per_slot_; ++i) s.blocks.push_back(free_.back() + static_cast<std::int32_t>(i));
    free_.pop_back();
    return true;
  }
  void release(sequence_blocks& s) {
    if (!s.blocks.empty()) free_.push_back(s.blocks.front());
    s = {};
  }
  cache_counts counts() const noexcept {
    return {.blocks = slots_ * per_slot_, .used = (slots_ - static_cast<std::int64_t>(free_.size())) * per_slot_};
  }

 private:
  std::int64_t slots_;
  std::vector<std::int32_t> free_{};
};

/// Each sequence has the blocks that its tokens need, wherever they are.
class paged_blocks {
 public:
  explicit paged_blocks(const step_limits& l) : limits_(l) {
    detail::require_cache(l, 1);
    for (std::int64_t i = l.blocks; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));
  }
  std::int64_t tokens_per_sequence() const noexcept {
    return (std::min)(limits_.context, limits_.blocks * limits_.block_rows);
  }
  /// A block for each of the others that run is left, so that what begins now is not sent back by their next tokens.
  bool start(sequence_blocks& s, std::span<const std::int32_t> tokens, std::int64_t running) {
    const auto length = static_cast<std::int64_t>(tokens.size());
    const std::int64_t needed = detail::blocks_of_tokens(length, limits_.block_rows) + running;
    if (needed > static_cast<std::int64_t>(free_.size())) return false;
    s = {};
    return grow(s, length);
  }
  /// Gives an empty `s` these blocks, if all are free.
  bool take(sequence_blocks& s, std::span<const std::int32_t> blocks) {
    std::vector<std::int32_t> wanted(blocks.begin(), blocks.end());
    std::sort(wanted.begin(), wanted.end());
    const auto is_wanted = [&](std::int32_t b) { return std::binary_search(wanted.begin(), wanted.end(), b); };
    if (std::ranges::count_if(free_, is_wanted) != std::ssize(blocks)) return false;
    std::erase_if(free_, is_wanted);
    s = {};
    s.blocks.assign(blocks.begin(), blocks.end());
    return true;
  }
  bool grow(sequence_blocks& s, std::int64_t tokens) {
    const std::int64_t more =
        detail::blocks_of_tokens(tokens, limits_.block_rows) - static_cast<std::int64_t>(s.blocks.size());
    if (more > static_cast<std::int64_t>(free_.size())) return false;
    for (std::int64_t i = 0; i < more; ++i) {
      s.blocks.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  void computed(sequence_blocks&, std::span<const std::int32_t>) const noexcept {}
  void shrink(sequence_blocks& s, std::int64_t tokens) {
    const auto kept = static_cast<std::size_t>(detail::blocks_of_tokens(tokens, limits_.block_rows));
    while (s.blocks.size() > kept) {
      free_.push_back(s.blocks.back());
      s.blocks.pop_back();
    }
  }
  void copied(sequence_blocks&) const noexcept {}
  void release(sequence_blocks& s) {
    shrink(s, 0);
    s = {};
  }
  cache_counts counts() const noexcept {
    return {.blocks = limits_.blocks, .used = limits_.blocks - static_cast<std::int64_t>(free_.size())};
  }

 private:
  step_limits limits_;
  std::vector<std::int32_t> free_{};
};

/// A sequence has a slot of a whole context from its beginning to its end. No request is sent back; memory that short answers leave is unused.
struct contiguous {
  using kind = cache_kind;
  using blocks = slot_blocks;
  using capabilities = infer::capabilities<truncate, tree_rows>;
  using needs = infer::capabilities<>;
};

/// A sequence has blocks for the tokens that it has. Source: Kwon et al., "PagedAttention", SOSP 2023, section 4, arXiv:2309.06180.
struct paged {
  using kind = cache_kind;
  using blocks = paged_blocks;
  using capabilities = infer::capabilities<truncate, tree_rows>;
  using needs = infer::capabilities<>;
};

}  // namespace heddle::inline v0::infer

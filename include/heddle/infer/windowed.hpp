// heddle/infer/windowed.hpp: a cache whose sequences keep the blocks that their window reaches.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// Blocks as of `paged_blocks`, without those that lie wholly before the window of a sequence's next row. While its prompt is computed, a sequence has blocks for the window and the
/// rows of a step, and those that the window has left are its next ones; then they are given back. Entries of blocks that are gone name the oldest that is there, and are
/// never read.
class windowed_blocks {
 public:
  /// Errors: `config_error` for limits without a window, and for fewer blocks than the window and a step's rows need.
  explicit windowed_blocks(const step_limits& l) : limits_(checked(l)) {
    for (std::int64_t i = l.blocks; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));
  }
  std::int64_t tokens_per_sequence() const noexcept { return limits_.context; }
  /// A block for each of the others that run is left, so that what begins now is not sent back by their next tokens.
  bool start(sequence_blocks& s, std::span<const std::int32_t> tokens, std::int64_t running) {
    const auto length = static_cast<std::int64_t>(tokens.size());
    const std::int64_t held = (std::min)(detail::blocks_of_tokens(length, limits_.block_rows), most_held(limits_));
    if (held + running > static_cast<std::int64_t>(free_.size())) return false;
    s = {};
    s.prompt = length;
    return take(s, held);
  }
  bool grow(sequence_blocks& s, std::int64_t tokens) {
    const std::int64_t more =
        detail::blocks_of_tokens(tokens, limits_.block_rows) - static_cast<std::int64_t>(s.blocks.size());
    return more <= static_cast<std::int64_t>(free_.size()) && take(s, more);
  }
  void computed(sequence_blocks& s, std::span<const std::int32_t> tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::int64_t first = (std::max)(std::int64_t{0}, count + 1 - limits_.window) / limits_.block_rows;
    for (std::int64_t b = s.gone; b < first; ++b) {
      const std::int32_t left = s.blocks[static_cast<std::size_t>(b)];
      if (count < s.prompt)
        s.blocks.push_back(left);
      else
        free_.push_back(left);
    }
    if (first > s.gone && first < static_cast<std::int64_t>(s.blocks.size()))
      std::fill_n(s.blocks.begin(), first, s.blocks[static_cast<std::size_t>(first)]);
    s.gone = (std::max)(s.gone, first);
    if (count >= s.prompt) shrink(s, count);
  }
  void shrink(sequence_blocks& s, std::int64_t tokens) {
    const std::int64_t kept = (std::max)(s.gone, detail::blocks_of_tokens(tokens, limits_.block_rows));
    for (; static_cast<std::int64_t>(s.blocks.size()) > kept; s.blocks.pop_back()) free_.push_back(s.blocks.back());
  }
  void copied(sequence_blocks&) const noexcept {}
  void release(sequence_blocks& s) {
    shrink(s, 0);
    s = {};
  }
  cache_counts counts() const noexcept {
    return {.blocks = limits_.blocks, .used = limits_.blocks - static_cast<std::int64_t>(free_.size())};
  }

  /// Blocks that a sequence has at most: for the window before the first row of a step and the step's rows, which may begin anywhere in a block.
  static std::int64_t most_held(const step_limits& l) noexcept {
    return detail::blocks_of_tokens(l.window - 1 + l.max_rows, l.block_rows) + 1;
  }

 private:
  static const step_limits& checked(const step_limits& l) {
    if (l.window < 1)
      throw config_error("heddle: windowed: the model should have a window of at least one token, got " +
                         std::to_string(l.window));
    detail::require_cache(l, 1);
    detail::require_cache(l, (std::min)(most_held(l), detail::blocks_of_tokens(l.context, l.block_rows)));
    return l;
  }
  bool take(sequence_blocks& s, std::int64_t more) {
    for (std::int64_t i = 0; i < more; ++i) {
      s.blocks.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }

  step_limits limits_;
  std::vector<std::int32_t> free_{};
};

/// Paged, for models all of whose layers see the last tokens only: a sequence has as many blocks as its window and a step's rows need, however long it is.
struct windowed {
  using kind = cache_kind;
  using blocks = windowed_blocks;
  using capabilities = infer::capabilities<truncate>;
  using needs = infer::capabilities<bounded_reach>;
};

}  // namespace heddle::inline v0::infer

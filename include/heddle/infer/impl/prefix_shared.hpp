// heddle/infer/impl/prefix_shared.hpp: the tree of shared blocks.
#pragma once

#include <heddle/infer/prefix_shared.hpp>

#include <algorithm>
#include <iterator>

namespace heddle::inline v0::infer {

HEDDLE_INLINE shared_blocks::shared_blocks(const step_limits& l)
    : limits_((detail::require_cache(l, 1), l)), blocks_(static_cast<std::size_t>(l.blocks)) {
  for (std::int64_t i = l.blocks; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));
}

// The longest listed beginning that leaves at least one token to compute.
HEDDLE_INLINE shared_blocks::beginning shared_blocks::look_up(std::span<const std::int32_t> tokens) {
  beginning found;
  std::span<const std::int32_t> left = tokens.first(tokens.size() - 1);
  const auto rows = static_cast<std::size_t>(limits_.block_rows);
  for (std::int32_t parent = -1; !left.empty();) {
    listing& next = after(parent);
    const std::span<const std::int32_t> wanted = left.first((std::min)(left.size(), rows));
    std::size_t equal = 0;
    std::int32_t best = -1;
    // In the order of the list the neighbours of a place have the longest beginnings in common with it.
    const auto compare = [&](listing::iterator i) {
      const auto ends = std::mismatch(wanted.begin(), wanted.end(), i->first.begin(), i->first.end());
      const auto n = static_cast<std::size_t>(ends.first - wanted.begin());
      if (n > equal) {
        equal = n;
        best = i->second;
      }
    };
    const auto place = next.lower_bound(wanted);
    if (place != next.end()) compare(place);
    if (place != next.begin()) compare(std::prev(place));
    found.tokens += static_cast<std::int64_t>(equal);
    if (equal < rows) {
      found.copied = best;
      break;
    }
    found.blocks.push_back(best);
    parent = best;
    left = left.subspan(rows);
  }
  return found;
}

// Whether a sequence of `blocks` blocks finds room, when what it shares can no longer be taken.
HEDDLE_INLINE bool shared_blocks::fits(const beginning& b, std::int64_t blocks, std::int64_t running) {
  std::int64_t room = obtainable();
  for (const std::int32_t shared : b.blocks) room -= at(shared).holders == 0 ? 1 : 0;
  if (b.copied >= 0) room -= at(b.copied).holders == 0 ? 1 : 0;
  return blocks - static_cast<std::int64_t>(b.blocks.size()) + running <= room;
}

HEDDLE_INLINE bool shared_blocks::start(sequence_blocks& s, std::span<const std::int32_t> tokens,
                                        std::int64_t running) {
  if (obtainable() < running) return false;
  const auto length = static_cast<std::int64_t>(tokens.size());
  const std::int64_t needed = detail::blocks_of_tokens(length, limits_.block_rows);
  beginning found = look_up(tokens);
  if (!fits(found, needed, running) && found.copied >= 0) {  // the block that is copied may be the one that is lacking
    found.tokens = rows_of(found);
    found.copied = -1;
  }
  if (!fits(found, needed, running)) return false;
  for (const std::int32_t b : found.blocks) hold(b);
  if (found.copied >= 0) hold(found.copied);
  s = {.blocks = std::move(found.blocks), .cached = found.tokens, .weights = weights_};
  s.listed = static_cast<std::int64_t>(s.blocks.size());
  grow(s, length);
  if (found.copied >= 0) s.copy = {.from = found.copied, .to = s.blocks[static_cast<std::size_t>(s.listed)]};
  looked_up_ += length;
  found_ += found.tokens;
  return true;
}

HEDDLE_INLINE bool shared_blocks::grow(sequence_blocks& s, std::int64_t tokens) {
  const std::int64_t more =
      detail::blocks_of_tokens(tokens, limits_.block_rows) - static_cast<std::int64_t>(s.blocks.size());
  if (more > obtainable()) return false;
  for (std::int64_t i = 0; i < more; ++i) {
    s.blocks.push_back(take());
    hold(s.blocks.back());
  }
  return true;
}

HEDDLE_INLINE void shared_blocks::computed(sequence_blocks& s, std::span<const std::int32_t> tokens) {
  if (s.weights != weights_) return;
  const auto rows = static_cast<std::size_t>(limits_.block_rows);
  for (auto i = static_cast<std::size_t>(s.listed); (i + 1) * rows <= tokens.size(); ++i) {
    const std::int32_t parent = i == 0 ? -1 : s.blocks[i - 1];
    const std::span<const std::int32_t> own = tokens.subspan(i * rows, rows);
    listing& list = after(parent);
    const auto place = list.lower_bound(own);
    if (place != list.end() && std::equal(own.begin(), own.end(), place->first.begin(), place->first.end())) {
      hold(place->second);  // equal, and computed by another sequence meanwhile
      drop(std::exchange(s.blocks[i], place->second));
    } else {
      block& b = at(s.blocks[i]);
      b.listed = true;
      b.parent = parent;
      b.place = list.emplace_hint(place, std::vector<std::int32_t>(own.begin(), own.end()), s.blocks[i]);
    }
    s.listed = static_cast<std::int64_t>(i + 1);
  }
}

HEDDLE_INLINE void shared_blocks::shrink(sequence_blocks& s, std::int64_t tokens) {
  const auto kept = static_cast<std::size_t>(detail::blocks_of_tokens(tokens, limits_.block_rows));
  for (; s.blocks.size() > kept; s.blocks.pop_back()) drop(s.blocks.back());
}

HEDDLE_INLINE void shared_blocks::copied(sequence_blocks& s) {
  if (s.copy.from >= 0) drop(s.copy.from);
  s.copy = {.from = -1, .to = -1};
}

HEDDLE_INLINE void shared_blocks::release(sequence_blocks& s) {
  copied(s);
  shrink(s, 0);
  s = {};
}

HEDDLE_INLINE void shared_blocks::forget() {
  ++weights_;
  for (const auto& [released, b] : unused_) free_.push_back(b);
  unused_.clear();
  first_.clear();
  for (block& b : blocks_) {
    b.listed = false;
    b.parent = -1;
    b.after.clear();
  }
}

HEDDLE_INLINE cache_counts shared_blocks::counts() const noexcept {
  return {.blocks = limits_.blocks,
          .used = limits_.blocks - obtainable(),
          .kept = static_cast<std::int64_t>(unused_.size()),
          .looked_up = looked_up_,
          .found = found_};
}

HEDDLE_INLINE void shared_blocks::hold(std::int32_t b) {
  block& held = at(b);
  if (held.holders++ == 0 && held.listed) unused_.erase(held.released);
}

HEDDLE_INLINE void shared_blocks::drop(std::int32_t b) {
  block& dropped = at(b);
  if (--dropped.holders > 0) return;
  if (dropped.listed) {
    dropped.released = releases_++;
    unused_.emplace(dropped.released, b);
  } else {
    free_.push_back(b);
  }
}

// A free block, or the listed one that was released first. There must be one.
HEDDLE_INLINE std::int32_t shared_blocks::take() {
  if (free_.empty()) {
    const auto oldest = unused_.begin();
    const std::int32_t b = oldest->second;
    after(at(b).parent).erase(at(b).place);
    at(b).listed = false;
    unused_.erase(oldest);
    return b;
  }
  const std::int32_t b = free_.back();
  free_.pop_back();
  return b;
}

}  // namespace heddle::inline v0::infer

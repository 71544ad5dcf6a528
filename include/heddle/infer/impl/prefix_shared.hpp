// heddle/infer/impl/prefix_shared.hpp: the tree of shared blocks.
#pragma once

#include <heddle/infer/prefix_shared.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

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
  found.alike = rows_of(found);
  if (limits_.states > 0) {  // up to the last block with a snapshot
    while (!found.blocks.empty() && at(found.blocks.back()).state < 0) found.blocks.pop_back();
    found.tokens = rows_of(found);
    found.copied = -1;
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
  const std::int64_t alike = found.alike;
  s = {.blocks = std::move(found.blocks), .cached = found.tokens, .weights = weights_};
  s.listed = static_cast<std::int64_t>(s.blocks.size());
  grow(s, length);
  if (found.copied >= 0) s.copy = {.from = found.copied, .to = s.blocks[static_cast<std::size_t>(s.listed)]};
  if (limits_.states > 0) {
    if (s.listed > 0) {
      const std::int32_t last = s.blocks[static_cast<std::size_t>(s.listed - 1)];
      s.state = at(last).state;
      ++at(last).readers;
      read_state(last);
    }
    for (const std::int64_t cut : {alike, (length - 1) / limits_.block_rows * limits_.block_rows})
      if (cut > s.cached && (s.cuts.empty() || cut > s.cuts.back())) s.cuts.push_back(cut);
  }
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
  if (s.state < 0) return;
  block& b = at(s.blocks[static_cast<std::size_t>(s.cached / limits_.block_rows - 1)]);
  if (--b.readers == 0 && !b.listed) lose_state(b);
  s.state = -1;
}

// The block of a sequence whose last token is this one, if others can find it.
HEDDLE_INLINE const shared_blocks::block* shared_blocks::ends_behind(const sequence_blocks& s,
                                                                     std::int64_t tokens) const {
  if (tokens == 0 || tokens % limits_.block_rows != 0 || s.weights != weights_) return nullptr;
  const block& b =
      blocks_[static_cast<std::size_t>(s.blocks[static_cast<std::size_t>(tokens / limits_.block_rows - 1)])];
  return b.listed ? &b : nullptr;
}
HEDDLE_INLINE bool shared_blocks::keeps_state_behind(const sequence_blocks& s, std::int64_t tokens) const {
  if (std::find(s.cuts.begin(), s.cuts.end(), tokens) == s.cuts.end()) return false;
  const block* const b = ends_behind(s, tokens);
  return b != nullptr && b->state < 0;
}
HEDDLE_INLINE void shared_blocks::keep_state(const sequence_blocks& s, std::int64_t tokens, std::int64_t state) {
  const std::int32_t b = s.blocks[static_cast<std::size_t>(tokens / limits_.block_rows - 1)];
  at(b).state = state;
  read_state(b);
}
HEDDLE_INLINE void shared_blocks::read_state(std::int32_t b) {
  snapshots_.erase(at(b).read);
  at(b).read = ++reads_;
  snapshots_.emplace(reads_, b);
}
HEDDLE_INLINE void shared_blocks::lose_state(block& b) {
  if (b.state < 0) return;
  dropped_.push_back(static_cast<std::int32_t>(std::exchange(b.state, -1)));
  snapshots_.erase(std::exchange(b.read, 0));
}
HEDDLE_INLINE std::int64_t shared_blocks::drop_state() {
  for (const auto& [read, b] : snapshots_) {
    if (at(b).readers > 0) continue;
    const std::int64_t state = at(b).state;
    lose_state(at(b));
    dropped_.pop_back();
    return state;
  }
  return -1;
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
    if (b.readers == 0) lose_state(b);
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
    lose_state(at(b));
    unused_.erase(oldest);
    return b;
  }
  const std::int32_t b = free_.back();
  free_.pop_back();
  return b;
}

}  // namespace heddle::inline v0::infer

// heddle/comm/blocks.hpp: where each rank's block begins in a buffer that holds one per rank.
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::detail {

struct equal_blocks {
  std::int64_t each;
  std::int64_t count(int) const { return each; }
  std::int64_t offset(int r) const { return r * each; }
};

struct counted_blocks {
  const std::int64_t* counts;
  std::int64_t count(int r) const { return counts[r]; }
  std::int64_t offset(int r) const {
    std::int64_t sum = 0;
    for (int i = 0; i < r; ++i) sum += counts[i];
    return sum;
  }
};

// FNV-1a: tells apart counts that must be equal on all ranks.
inline std::uint64_t hash_of(std::span<const std::int64_t> counts) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const std::int64_t c : counts) h = (h ^ static_cast<std::uint64_t>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace heddle::inline v0::detail

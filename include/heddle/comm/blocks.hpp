// heddle/comm/blocks.hpp: offsets of the ranks' blocks in a buffer that holds one block per rank.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

// The same with counts of its own: for calls that outlive those of the caller.
struct kept_blocks {
  explicit kept_blocks(std::span<const std::int64_t> of) : counts(of.begin(), of.end()) {}
  std::vector<std::int64_t> counts;
  std::int64_t count(int r) const { return counts[static_cast<std::size_t>(r)]; }
  std::int64_t offset(int r) const { return counted_blocks{counts.data()}.offset(r); }
};

// FNV-1a: tells apart counts that must be equal on all ranks.
inline std::uint64_t hash_of(std::span<const std::int64_t> counts) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const std::int64_t c : counts) h = (h ^ static_cast<std::uint64_t>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace heddle::inline v0::detail

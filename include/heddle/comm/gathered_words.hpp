// heddle/comm/gathered_words.hpp: gathers 64-bit numbers of each rank of a group on all ranks.
#pragma once

#include <heddle/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0 {

/// Words of all ranks of a group behind each other, in the order of the ranks; `counts[r]` are of rank r.
struct gathered_words {
  std::vector<std::int64_t> words{}, counts{};

  /// Those of a rank.
  std::span<const std::int64_t> of(int rank) const {
    std::size_t first = 0;
    for (int r = 0; r < rank; ++r) first += static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]);
    return std::span(words).subspan(first, static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
  }
};

/// Gathers the words of each rank of `group`, of which each may have another number. Called on all ranks together.
template <class Group>
gathered_words gather_words(Group& group, std::span<const std::int64_t> mine) {
  gathered_words all;
  all.counts.resize(static_cast<std::size_t>(group.size()));
  const auto n = static_cast<std::int64_t>(mine.size());
  group.all_gather(std::span<const std::int64_t>(&n, 1), std::span<std::int64_t>(all.counts));
  std::int64_t total = 0;
  for (const std::int64_t c : all.counts) total += c;
  all.words.resize(static_cast<std::size_t>(total));
  group.all_gather_v(mine, std::span<std::int64_t>(all.words), all.counts);
  return all;
}

}  // namespace heddle::inline v0

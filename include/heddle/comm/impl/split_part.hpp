// heddle/comm/impl/split_part.hpp: bodies of heddle/comm/split_part.hpp.
#pragma once

#include <heddle/comm/split_part.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0::detail {

HEDDLE_INLINE split_part part_of_ranks(std::span<const std::int64_t> colors_and_keys, int rank, const std::string& name,
                                       std::int64_t number) {
  const auto color_of = [&](int r) { return colors_and_keys[2 * static_cast<std::size_t>(r)]; };
  const auto key_of = [&](int r) { return colors_and_keys[2 * static_cast<std::size_t>(r) + 1]; };
  const std::int64_t color = color_of(rank);
  split_part part;
  for (int r = 0; r < static_cast<int>(colors_and_keys.size() / 2); ++r)
    if (color_of(r) == color) part.members.push_back(r);
  std::sort(part.members.begin(), part.members.end(),
            [&](int a, int b) { return std::pair(key_of(a), a) < std::pair(key_of(b), b); });
  part.rank = static_cast<int>(std::find(part.members.begin(), part.members.end(), rank) - part.members.begin());
  part.label = name;
  part.label += '/';
  part.label += std::to_string(number);
  part.label += ':';
  part.label += std::to_string(color);
  return part;
}

}  // namespace heddle::inline v0::detail

// heddle/train/impl/saved_parameter.hpp: bodies of heddle/train/saved_parameter.hpp.
#pragma once

#include <heddle/train/saved_parameter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE std::vector<saved_parameter> saved_parameters(std::span<const model::parameter> table) {
  std::vector<saved_parameter> all;
  all.reserve(table.size());
  for (const model::parameter& p : table)
    all.push_back({p.name, p.offset, p.count, p.counted, p.logical, p.local, p.start});
  return all;
}

HEDDLE_INLINE std::vector<flat_box> boxes_of(std::span<const std::int64_t> extents, std::int64_t begin,
                                             std::int64_t end) {
  std::vector<flat_box> all;
  const std::size_t rank = extents.size();
  while (begin < end) {
    // The widest slab of whole inner boxes that starts at `begin` and stays inside: dimension `d` advances by `count`.
    std::int64_t inner = 1;
    std::size_t d = rank;
    std::int64_t slab = 1;
    std::int64_t count = 1;
    while (d > 0) {
      const std::int64_t index = begin / inner % extents[d - 1];
      const std::int64_t fits = (std::min)(extents[d - 1] - index, (end - begin) / inner);
      if (begin % inner != 0 || fits == 0) break;
      slab = inner;
      count = fits;
      --d;
      if (index != 0 || fits < extents[d]) break;
      inner *= extents[d];
    }
    flat_box box{std::vector<std::int64_t>(rank), std::vector<std::int64_t>(rank, 1), begin, slab * count};
    std::int64_t rest = begin;
    for (std::size_t i = rank; i-- > 0;) {
      box.start[i] = rest % extents[i];
      rest /= extents[i];
    }
    std::int64_t below = 1;
    for (std::size_t i = rank; i-- > 0 && below < slab;) {
      box.extents[i] = extents[i];
      below *= extents[i];
    }
    if (rank > 0) box.extents[d] = count;
    begin += box.count;
    all.push_back(std::move(box));
  }
  return all;
}

}  // namespace heddle::inline v0::train::detail

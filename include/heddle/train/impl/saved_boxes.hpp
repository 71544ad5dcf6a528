// heddle/train/impl/saved_boxes.hpp: bodies of heddle/train/saved_boxes.hpp.
#pragma once

#include <heddle/train/saved_boxes.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE std::vector<saved_box> saved_boxes(const saved_parameter& p, const kept_part& part) {
  std::vector<saved_box> all;
  for (flat_box& b : boxes_of(p.local, part.first, part.first + static_cast<std::int64_t>(part.count))) {
    for (std::size_t d = 0; d < b.start.size(); ++d) b.start[d] += p.start[d];
    all.push_back({{p.logical, std::move(b.start), std::move(b.extents)},
                   part.at + static_cast<std::size_t>(b.first - part.first),
                   static_cast<std::size_t>(b.count)});
  }
  return all;
}

}  // namespace heddle::inline v0::train::detail

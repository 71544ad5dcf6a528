// heddle/core/split.hpp: how a range of elements is cut into contiguous, balanced parts.
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>

namespace heddle::inline v0 {

/// A balanced cut of `[0, extent)` into `parts` contiguous pieces: sizes differ by at most one, the larger pieces
/// come first, and pieces may be empty when there are more parts than elements.
/// Size of part r: `q + [r < m]`, offset: `r*q + min(r, m)`, with `q = extent / parts`, `m = extent % parts`.
/// Requires `extent >= 0` and `parts > 0`. Units: elements.
struct balanced_split {
  std::int64_t extent = 0;
  std::int64_t parts = 1;

  HEDDLE_HD constexpr std::int64_t size(std::int64_t part) const noexcept {
    return extent / parts + (part < extent % parts ? 1 : 0);
  }
  HEDDLE_HD constexpr std::int64_t offset(std::int64_t part) const noexcept {
    const std::int64_t larger = extent % parts;
    return part * (extent / parts) + (part < larger ? part : larger);
  }
  /// The part that holds element `index`. Requires `0 <= index < extent`.
  HEDDLE_HD constexpr std::int64_t owner(std::int64_t index) const noexcept {
    const std::int64_t quotient = extent / parts;
    const std::int64_t larger = extent % parts;
    const std::int64_t in_larger = larger * (quotient + 1);
    return index < in_larger ? index / (quotient + 1) : larger + (index - in_larger) / quotient;
  }
  /// The largest part.
  HEDDLE_HD constexpr std::int64_t largest() const noexcept { return (extent + parts - 1) / parts; }
};

}  // namespace heddle::inline v0

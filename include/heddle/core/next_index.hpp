// heddle/core/next_index.hpp: steps through the indices of a box in row-major order.
#pragma once

#include <cstddef>

namespace heddle::inline v0 {

/// Goes on to the next index of a box of `dims` dimensions, the last one fastest. `step(d)` goes on along dimension d and returns
/// whether that stays inside; where it does not, it has gone back to the first place. Returns false after the last index,
/// with all dimensions back at their first place.
template <class Step>
[[gnu::always_inline]] constexpr bool next_index(std::size_t dims, const Step& step) {
  for (;;) {
    if (dims == 0) return false;
    if (step(--dims)) return true;
  }
}
/// The same for an index of numbers from 0 to below the extents, along the first `dims` dimensions.
template <class Index, class Extents>
[[gnu::always_inline]] constexpr bool next_index(Index& at, const Extents& extents, std::size_t dims) {
  return next_index(dims, [&](std::size_t d) {
    if (++at[d] < extents[d]) return true;
    at[d] = 0;
    return false;
  });
}

}  // namespace heddle::inline v0

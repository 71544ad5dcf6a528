// heddle/train/share_windows.hpp: shares of a flat buffer in windows of bounded size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::inline v0::train::detail {

// `f(at, counts)` with the elements that each share has in a window of all, from `at` of each on, at most `window` of each.
template <class F>
void for_each_window(const std::vector<std::int64_t>& shares, std::int64_t window, F&& f) {
  const std::int64_t most = *std::max_element(shares.begin(), shares.end());
  std::vector<std::int64_t> counts(shares.size());
  for (std::int64_t at = 0; at < most; at += window) {
    for (std::size_t r = 0; r < shares.size(); ++r)
      counts[r] = (std::clamp)(shares[r] - at, std::int64_t{0}, window);
    f(at, counts);
  }
}
// Calls `f(r, begin, end, in_window)` for each share's part of a window: where it is in the whole, and behind how many.
template <class F>
void for_each_share(const std::vector<std::int64_t>& shares, std::int64_t at, const std::vector<std::int64_t>& counts,
                    F&& f) {
  std::int64_t offset = 0, in_window = 0;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (counts[r] > 0) f(static_cast<int>(r), offset + at, offset + at + counts[r], in_window);
    offset += shares[r];
    in_window += counts[r];
  }
}

}  // namespace heddle::inline v0::train::detail

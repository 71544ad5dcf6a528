// heddle/plan/atomization/stagger.hpp: windows whose ends, and saves, are staggered.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// Shortens windows until any two ends are at least `seconds` apart: jobs that fill their windows save one after the
/// other instead of sharing a store that is slower than all of them. The latest end stays; a window of which nothing is
/// left is dropped; the order stays. Errors: `config_error` if `seconds` is negative.
inline std::vector<window> staggered(std::vector<window> windows, double seconds) {
  if (!(seconds >= 0)) throw config_error("heddle: ends cannot be " + number_text(seconds) + " s apart");
  std::vector<std::size_t> order(windows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return windows[a].end != windows[b].end ? windows[a].end > windows[b].end : a < b;
  });
  double latest = std::numeric_limits<double>::infinity();
  for (const std::size_t i : order) {
    windows[i].end = (std::min)(windows[i].end, latest);
    if (windows[i].length() > 0) latest = windows[i].end - seconds;
  }
  std::erase_if(windows, [](const window& w) { return !(w.length() > 0); });
  return windows;
}

}  // namespace heddle::inline v0::plan::sja

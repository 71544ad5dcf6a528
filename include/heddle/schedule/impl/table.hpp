// heddle/schedule/impl/table.hpp: bodies of heddle/schedule/table.hpp.
#pragma once

#include <heddle/schedule/table.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace heddle::inline v0::schedule::detail {

HEDDLE_INLINE std::string misfit_text(const std::string& name, int microbatches, int ranks, const void* when,
                                      bool (*could)(const void*, int, int)) {
  const std::string text = "heddle: the schedule " + (name.empty() ? name : '"' + name + "\" ") + "cannot run " +
                           std::to_string(microbatches) + " microbatches on " + std::to_string(ranks) +
                           " pipeline ranks; ";
  // The numbers next to `n`, below and above, that work; none beyond `away` is looked at.
  const auto nearest = [](int n, int away, auto&& works) {
    std::string found;
    const std::int64_t most = (std::min)(std::int64_t{n} + away, std::int64_t{(std::numeric_limits<int>::max)()});
    for (int below = n - 1; below > 0 && n - below <= away && found.empty(); --below)
      if (works(below)) found = std::to_string(below);
    for (std::int64_t above = std::int64_t{n} + 1; above <= most; ++above)
      if (works(static_cast<int>(above))) return found + (found.empty() ? "" : " or ") + std::to_string(above);
    return found;
  };
  const auto microbatches_on = [&](int r) {  // schedules that meet ask for 2 r at least
    return nearest(microbatches, 2 * r + 1, [&](int m) { return could(when, m, r); });
  };
  if (could == nullptr) return text + "change one of the numbers";
  if (const std::string m = microbatches_on(ranks); !m.empty()) return text + "it can run " + m + " on them";
  if (const std::string r = nearest(ranks, 2, [&](int n) { return could(when, microbatches, n); }); !r.empty())
    return text + "it can run them on " + r + " ranks";
  for (const int r : {ranks - 1, ranks + 1})
    if (const std::string m = r > 0 ? microbatches_on(r) : ""; !m.empty())
      return text + "it can run " + m + " on " + std::to_string(r) + " ranks";
  return text + "change both numbers";
}

}  // namespace heddle::inline v0::schedule::detail

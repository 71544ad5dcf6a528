// heddle/infer/impl/serve/watch.hpp: bodies of heddle/infer/serve/watch.hpp.
#pragma once

#include <heddle/infer/serve/watch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

HEDDLE_INLINE void serve_watch::tick(double seconds) {
  using observe::signal;
  const engine_counts now = queue_.statistics().counts();
  const std::int64_t waiting = queue_.waiting(), steps = now.steps - last_.steps;
  if (seconds > 0) book_.add(signal::arrivals, static_cast<double>(now.submitted - last_.submitted) / seconds);
  book_.add(signal::queued, static_cast<double>(waiting));
  if (options_.most_running > 0)
    book_.add(signal::idle, 1 - static_cast<double>(now.running) / static_cast<double>(options_.most_running));
  if (steps > 0) {
    book_.add(signal::rows, static_cast<double>(now.rows - last_.rows) / static_cast<double>(steps));
    // With requests at hand the engine steps without pause; otherwise a window says nothing about a step's time.
    if (now.running > 0 && last_.running > 0) book_.add(signal::step, seconds / static_cast<double>(steps));
  }
  last_ = now;
  counters_.add_to(book_, seconds);
  book_.end_window();

  const std::vector<observe::verdict> found = book_.verdicts();
  const auto has = [](const std::vector<observe::verdict>& all, int row) {
    return std::any_of(all.begin(), all.end(), [row](const observe::verdict& v) { return v.row == row; });
  };
  if (options_.print) {
    for (const observe::verdict& v : found)
      if (!has(told_, v.row)) std::fprintf(stderr, "heddle: %s\n", to_string(v).c_str());
    for (const observe::verdict& v : told_)
      if (!has(found, v.row)) std::fprintf(stderr, "heddle: %s is over\n", std::string(v.name).c_str());
  }
  told_ = found;
  const std::vector<int> absent = book_.not_seen_here();
  std::vector<std::pair<std::string, bool>> conditions;
  for (std::size_t r = 0; r < book_.rows().size(); ++r)
    if (std::find(absent.begin(), absent.end(), static_cast<int>(r)) == absent.end())
      conditions.emplace_back(std::string(book_.rows()[r].name), has(found, static_cast<int>(r)));
  queue_.statistics().set_conditions(std::move(conditions));
}

}  // namespace heddle::inline v0::infer

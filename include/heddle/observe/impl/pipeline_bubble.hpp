// heddle/observe/impl/pipeline_bubble.hpp: bodies of heddle/observe/pipeline_bubble.hpp.
#pragma once

#include <heddle/observe/pipeline_bubble.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

HEDDLE_INLINE double bubble_report::bubble() const noexcept {
  if (makespan_ns <= 0 || ranks.empty()) return 0.0;
  double busy = 0.0;
  for (const std::int64_t b : busy_ns) busy += static_cast<double>(b);
  return 1.0 - busy / (static_cast<double>(ranks.size()) * static_cast<double>(makespan_ns));
}

HEDDLE_INLINE std::vector<bubble_report> pipeline_bubbles(std::span<const event> events, std::span<const int> ranks) {
  std::vector<event> work;
  for (const event& e : events)
    if (is_stage_work(e.kind) && e.end_ns > e.begin_ns &&
        (ranks.empty() || std::find(ranks.begin(), ranks.end(), e.rank) != ranks.end()))
      work.push_back(e);
  std::sort(work.begin(), work.end(), [](const event& a, const event& b) {
    return a.step != b.step ? a.step < b.step : a.rank != b.rank ? a.rank < b.rank : a.begin_ns < b.begin_ns;
  });
  std::vector<int> chosen(ranks.begin(), ranks.end());  // a chosen rank that did nothing was idle
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  std::vector<bubble_report> reports;
  for (std::size_t k = 0; k < work.size();) {
    bubble_report report;
    report.step = work[k].step;
    report.ranks = chosen;
    report.busy_ns.assign(chosen.size(), 0);
    std::int64_t begin = work[k].begin_ns;
    std::int64_t end = begin;
    while (k < work.size() && work[k].step == report.step) {
      const int rank = work[k].rank;
      std::int64_t busy = 0;
      std::int64_t covered = work[k].begin_ns;
      begin = (std::min)(begin, covered);
      for (; k < work.size() && work[k].step == report.step && work[k].rank == rank; ++k) {
        busy += (std::max)(std::int64_t{0}, work[k].end_ns - (std::max)(work[k].begin_ns, covered));
        covered = (std::max)(covered, work[k].end_ns);
      }
      end = (std::max)(end, covered);
      if (chosen.empty()) {
        report.ranks.push_back(rank);
        report.busy_ns.push_back(busy);
      } else {
        report.busy_ns[static_cast<std::size_t>(std::find(chosen.begin(), chosen.end(), rank) - chosen.begin())] = busy;
      }
    }
    report.makespan_ns = end - begin;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace heddle::inline v0::observe

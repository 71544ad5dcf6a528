// heddle/observe/pipeline_bubble.hpp: how much of a pipeline's time its ranks stood idle, from recorded events.
#pragma once

#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

/// What the ranks of one pipeline did in one step. Units: nanoseconds.
struct bubble_report {
  int step = -1;
  std::int64_t makespan_ns = 0;       ///< from the first stage work of any rank to the end of the last
  std::vector<int> ranks;             ///< ascending
  std::vector<std::int64_t> busy_ns;  ///< per rank: time within forward or backward, overlaps counted once

  std::int64_t idle_ns(std::size_t i) const noexcept { return makespan_ns - busy_ns[i]; }
  /// Idle part of all ranks' time, in [0, 1]; 0 when nothing was recorded.
  double bubble() const noexcept {
    if (makespan_ns <= 0 || ranks.empty()) return 0.0;
    double busy = 0.0;
    for (const std::int64_t b : busy_ns) busy += static_cast<double>(b);
    return 1.0 - busy / (static_cast<double>(ranks.size()) * static_cast<double>(makespan_ns));
  }
};

/// Bubble of every step that has stage work, in step order: `1 - busy / (ranks * makespan)`. Collectives inside a
/// forward or backward count as busy; waiting for the neighbour, outside of them, as idle. `ranks` chooses one pipeline
/// (the ranks of one group along the pipeline axis); empty takes every rank with stage work.
/// Units: nanoseconds.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2 (bubble time fraction).
inline std::vector<bubble_report> pipeline_bubbles(std::span<const event> events, std::span<const int> ranks = {}) {
  const std::set<int> wanted(ranks.begin(), ranks.end());
  std::map<int, std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>>> work;  // step, rank, intervals
  for (const event& e : events)
    if (is_stage_work(e.kind) && e.end_ns > e.begin_ns && (wanted.empty() || wanted.count(e.rank) > 0))
      work[e.step][e.rank].emplace_back(e.begin_ns, e.end_ns);
  std::vector<bubble_report> reports;
  for (auto& [step, by_rank] : work) {
    bubble_report report;
    report.step = step;
    std::int64_t begin = by_rank.begin()->second.front().first;
    std::int64_t end = begin;
    for (const int r : wanted) by_rank[r];  // a chosen rank that did nothing was idle
    for (auto& [rank, intervals] : by_rank) {
      std::sort(intervals.begin(), intervals.end());
      std::int64_t busy = 0;
      std::int64_t covered = intervals.empty() ? 0 : intervals.front().first;
      for (const auto& [from, to] : intervals) {
        busy += (std::max)(std::int64_t{0}, to - (std::max)(from, covered));
        covered = (std::max)(covered, to);
        begin = (std::min)(begin, from);
        end = (std::max)(end, to);
      }
      report.ranks.push_back(rank);
      report.busy_ns.push_back(busy);
    }
    report.makespan_ns = end - begin;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace heddle::inline v0::observe

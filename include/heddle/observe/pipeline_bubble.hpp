// heddle/observe/pipeline_bubble.hpp: the bubble of a pipeline, measured from recorded events.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
  double bubble() const noexcept;
};

/// Bubble of every step that has stage work, in step order: `1 - busy / (ranks * makespan)`. Collectives inside a
/// forward or backward count as busy; waiting for the neighbour, outside of them, as idle. `ranks` chooses one pipeline
/// (the ranks of one group along the pipeline axis); empty takes every rank with stage work.
/// Units: nanoseconds.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2 (bubble time fraction).
HEDDLE_INLINE std::vector<bubble_report> pipeline_bubbles(std::span<const event> events,
                                                          std::span<const int> ranks = {});

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/pipeline_bubble.hpp>
#endif

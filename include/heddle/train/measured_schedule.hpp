// heddle/train/measured_schedule.hpp: a measured step beside its simulation.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/gantt.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>
#include <heddle/observe/pipeline_bubble.hpp>
#include <heddle/observe/timeline_svg.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/sim/gantt.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {
namespace detail {

// The kind of action that is recorded as this; false for what is none.
HEDDLE_INLINE bool action_kind_of(activity what, schedule::action_kind& kind) noexcept;

}  // namespace detail

/// The mean time of each kind of computation on each stage, and of each kind of pair that overlaps, over all recorded
/// steps and ranks: durations for `sim::simulate`. What always ran beside another computation has the time it took so;
/// what was not recorded takes none. Units: milliseconds.
class measured_times {
 public:
  /// `table` is the one that ran: it says which computations are pairs.
  measured_times(std::span<const event> events, schedule::table_view table);

  double operator()(const schedule::action& a) const;
  double operator()(const schedule::action& a, const schedule::action& b) const {
    const auto found = pairs_.find({static_cast<int>(a.kind), a.stage, static_cast<int>(b.kind), b.stage});
    return found == pairs_.end() ? (*this)(a) + (*this)(b) : found->second.mean();
  }

 private:
  struct sum {
    double ms = 0;
    int count = 0;
    void add(std::int64_t begin_ns, std::int64_t end_ns) noexcept {
      ms += static_cast<double>(end_ns - begin_ns) * 1e-6;
      ++count;
    }
    double mean() const noexcept { return ms / count; }
  };

  // By the kind and the stage of a computation and, in pairs_, of the other one; -1 if there is none.
  std::map<std::array<int, 4>, sum> alone_, paired_, pairs_;
};

/// A row of the charts: a rank of the world, its place in its pipeline, and what it is called ("rank 3" if empty).
struct schedule_row {
  int world_rank = 0;
  int pipeline_rank = 0;
  std::string name = {};
};

/// A step as it was and as it would be with mean times, messages that take no time, and no other work in between: what
/// is longer in the first is waiting for messages, unequal microbatches, or a machine that had other things to do.
/// Units: milliseconds.
struct schedule_comparison {
  gantt_chart measured;
  gantt_chart predicted;
  double measured_bubble = 0;   ///< of the step, as `observe::pipeline_bubbles` says; the mean of several pipelines
  double predicted_bubble = 0;  ///< of the simulation
  std::string note = {};        ///< what the shades mean

  /// Both charts above each other on one time axis.
  std::string svg(gantt_options options = {}) const {
    if (options.note.empty()) options.note = note;
    const std::array<gantt_chart, 2> charts{measured, predicted};
    return gantt_svg(charts, options);
  }
};
/// The measured and the predicted chart in letters.
inline std::string to_string(const schedule_comparison& both, int columns = 120) {
  const std::array<gantt_chart, 2> charts{both.measured, both.predicted};
  return gantt_text(charts, columns);
}

/// Compares the recorded events of one step with a simulation of `table`, the table that ran. `rows` are the ranks to
/// show, of one pipeline or of several; by default ranks 0, 1, .. of the world, which are the pipeline. Everything is
/// shown from the first computation of these ranks in this step to the last; waiting for messages and collectives are
/// strips under the boxes.
/// Errors: `schedule_error` if a row names a rank that the table does not have.
HEDDLE_INLINE schedule_comparison compare_with_simulation(std::span<const event> events, schedule::table_view table,
                                                          int step, std::vector<schedule_row> rows = {});

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/measured_schedule.hpp>
#endif

// heddle/observe/timeline_svg.hpp: pipelines as Gantt charts in SVG, measured and predicted.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/gantt.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>
#include <heddle/observe/text_file.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

/// One thing in a chart. Units: nanoseconds from the chart's left edge.
struct timeline_box {
  int row = 0;
  activity kind = activity::other;
  std::string label = {};  ///< written inside if there is room: the microbatch, say
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// One chart: a row per rank or stage. Measured events and simulated tables both become one.
struct timeline_chart {
  std::string title = {};                  ///< "measured"
  std::vector<std::string> captions = {};  ///< "bubble 27.3 %", "peak memory 41 MiB"; shown beside the title
  std::vector<std::string> rows = {};      ///< labels, top to bottom
  std::vector<timeline_box> boxes = {};
};

/// What a picture of timelines shows besides its charts, and how wide it is.
struct timeline_options {
  std::string title = {};     ///< of the whole picture
  std::string subtitle = {};  ///< mesh, schedule, machine
  int width = 1200;           ///< pixels
  bool same_scale = true;     ///< one time scale for all charts; otherwise each chart fills the width
};

/// A chart of what ranks did: one row per rank, in the order of `ranks` (all that occur, ascending, if empty), boxes
/// labelled with their microbatch. Shows the pipeline of `step` (or of all steps, if negative): the span from the first
/// to the last stage work of these ranks, and nothing outside of it.
HEDDLE_INLINE timeline_chart timeline_from_events(std::span<const event> events, int step,
                                                  std::span<const std::string> rank_names,
                                                  std::span<const int> ranks = {});

namespace detail {

struct timeline_style {
  activity kind;
  const char* letters;
  const char* fill;
  const char* ink;
  bool strip;
};
inline constexpr std::array<timeline_style, 11> timeline_styles{{
    {activity::forward, "F", "#5aa9f7", "#08213b", false},
    {activity::backward, "B", "#56d4a0", "#06281b", false},
    {activity::backward_input, "I", "#4ccbe0", "#052a30", false},
    {activity::backward_weight, "W", "#b7d968", "#222d05", false},
    {activity::optimizer, "OPTIM", "#b18cf5", "#1f0f3d", false},
    {activity::data, "DATA", "#8b98a9", "#10151c", false},
    {activity::checkpoint, "SAVE", "#8b98a9", "#10151c", false},
    {activity::other, "?", "#8b98a9", "#10151c", false},
    {activity::send, "", "#ffb224", "#000000", true},
    {activity::recv, "", "#a3660c", "#000000", true},
    {activity::collective, "", "#d95c8c", "#000000", true},
}};
inline int timeline_style_of(activity kind) {
  for (std::size_t i = 0; i < timeline_styles.size(); ++i)
    if (timeline_styles[i].kind == kind) return static_cast<int>(i);
  return 7;
}

// Two computations of a rank at the same time are a pair of its schedule: each gets half of the row.
HEDDLE_INLINE void share_rows(std::vector<gantt_box*> work);

}  // namespace detail

/// A timeline as a Gantt chart in milliseconds, for `gantt_svg` and `gantt_text`.
HEDDLE_INLINE gantt_chart to_gantt(const timeline_chart& chart);

/// The picture as text: the charts one above the other on one time axis, a row per rank, idle time hatched, sends,
/// receives and collectives as thin strips under the boxes. Stands alone: no scripts, no external fonts or styles.
HEDDLE_INLINE std::string timeline_svg(std::span<const timeline_chart> charts, const timeline_options& options = {});

/// Writes the measured chart above the predicted one. Errors: `io_error` with the path and the system's text.
inline void write_timeline_svg(const std::string& path, const timeline_chart& measured, const timeline_chart& predicted,
                               const timeline_options& options = {}) {
  const std::array<timeline_chart, 2> charts{measured, predicted};
  write_text_file(path, timeline_svg(charts, options));
}

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/timeline_svg.hpp>
#endif

// heddle/observe/timeline_svg.hpp: pipelines as Gantt charts in a standalone SVG picture: measured above predicted.
#pragma once

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

struct timeline_options {
  std::string title = {};     ///< of the whole picture
  std::string subtitle = {};  ///< mesh, schedule, machine
  int width = 1200;           ///< pixels
  bool same_scale = true;     ///< one time scale for all charts; otherwise each chart fills the width
};

/// A chart of what ranks did: one row per rank, in the order of `ranks` (all that occur, ascending, if empty), boxes
/// labelled with their microbatch. Shows the pipeline of `step` (or of all steps, if negative): the span from the first
/// to the last stage work of these ranks, and nothing outside of it.
inline timeline_chart timeline_from_events(std::span<const event> events, int step,
                                           std::span<const std::string> rank_names, std::span<const int> ranks = {}) {
  std::vector<int> order(ranks.begin(), ranks.end());
  if (order.empty()) {
    for (const event& e : events)
      if (e.rank >= 0) order.push_back(e.rank);
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
  }
  const auto row_of = [&order](int rank) { return std::find(order.begin(), order.end(), rank) - order.begin(); };
  const auto shown = [&](const event& e) {
    return (step < 0 || e.step == step) && row_of(e.rank) < static_cast<std::ptrdiff_t>(order.size());
  };
  timeline_chart chart;
  chart.title = "measured";
  for (const int r : order) {
    const auto i = static_cast<std::size_t>(r);
    chart.rows.push_back(r >= 0 && i < rank_names.size() ? rank_names[i] : "rank " + std::to_string(r));
  }
  std::int64_t begin = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t end = (std::numeric_limits<std::int64_t>::min)();
  for (const event& e : events) {
    if (!shown(e) || !is_stage_work(e.kind)) continue;
    begin = (std::min)(begin, e.begin_ns);
    end = (std::max)(end, e.end_ns);
  }
  for (const event& e : events) {
    if (!shown(e) || e.end_ns <= begin || e.begin_ns >= end) continue;
    chart.boxes.push_back({static_cast<int>(row_of(e.rank)), e.kind,
                           e.microbatch >= 0 ? std::to_string(e.microbatch) : std::string{},
                           (std::max)(e.begin_ns, begin) - begin, (std::min)(e.end_ns, end) - begin});
  }
  return chart;
}

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
inline void share_rows(std::vector<gantt_box*> work) {
  std::sort(work.begin(), work.end(), [](const gantt_box* a, const gantt_box* b) {
    if (a->row != b->row) return a->row < b->row;
    return a->begin != b->begin ? a->begin < b->begin : a < b;
  });
  for (std::size_t i = 1; i < work.size(); ++i) {
    gantt_box &a = *work[i - 1], &b = *work[i];
    if (a.row != b.row || b.begin >= a.end || a.lane == gantt_lane::lower) continue;
    a.lane = gantt_lane::upper;
    b.lane = gantt_lane::lower;
  }
}

}  // namespace detail

/// The same chart in milliseconds, for `gantt_svg` and `gantt_text`.
inline gantt_chart to_gantt(const timeline_chart& chart) {
  gantt_chart out{.title = chart.title, .captions = chart.captions, .rows = chart.rows};
  for (const detail::timeline_style& s : detail::timeline_styles) {
    gantt_style style{activity_name(s.kind), s.fill, s.ink, s.strip, s.letters};
    if (s.strip) style.name += " (with waiting)";
    out.styles.push_back(std::move(style));
  }
  for (const timeline_box& b : chart.boxes)
    out.boxes.push_back({b.row, detail::timeline_style_of(b.kind), b.label, static_cast<double>(b.begin_ns) * 1e-6,
                         static_cast<double>(b.end_ns) * 1e-6});
  std::vector<gantt_box*> work;
  for (gantt_box& b : out.boxes)
    if (b.style < 4) work.push_back(&b);
  detail::share_rows(std::move(work));
  return out;
}

/// The picture as text: the charts one above the other on one time axis, a row per rank, idle time hatched, sends,
/// receives and collectives as thin strips under the boxes. Stands alone: no scripts, no external fonts or styles.
inline std::string timeline_svg(std::span<const timeline_chart> charts, const timeline_options& options = {}) {
  std::vector<gantt_chart> drawn;
  for (const timeline_chart& c : charts) drawn.push_back(to_gantt(c));
  return gantt_svg(
      drawn,
      {.title = options.title, .subtitle = options.subtitle, .width = options.width, .same_scale = options.same_scale});
}

/// Writes the measured chart above the predicted one. Errors: `io_error` with the path and the system's text.
inline void write_timeline_svg(const std::string& path, const timeline_chart& measured, const timeline_chart& predicted,
                               const timeline_options& options = {}) {
  const std::array<timeline_chart, 2> charts{measured, predicted};
  write_text_file(path, timeline_svg(charts, options));
}

}  // namespace heddle::inline v0::observe

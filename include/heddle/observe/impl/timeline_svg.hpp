// heddle/observe/impl/timeline_svg.hpp: bodies of heddle/observe/timeline_svg.hpp.
#pragma once

#include <heddle/observe/timeline_svg.hpp>
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

HEDDLE_INLINE timeline_chart timeline_from_events(std::span<const event> events, int step,
                                                  std::span<const std::string> rank_names, std::span<const int> ranks) {
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

}  // namespace heddle::inline v0::observe

namespace heddle::inline v0::observe {
namespace detail {

HEDDLE_INLINE void share_rows(std::vector<gantt_box*> work) {
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
}  // namespace heddle::inline v0::observe

namespace heddle::inline v0::observe {

HEDDLE_INLINE gantt_chart to_gantt(const timeline_chart& chart) {
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

HEDDLE_INLINE std::string timeline_svg(std::span<const timeline_chart> charts, const timeline_options& options) {
  std::vector<gantt_chart> drawn;
  for (const timeline_chart& c : charts) drawn.push_back(to_gantt(c));
  return gantt_svg(
      drawn,
      {.title = options.title, .subtitle = options.subtitle, .width = options.width, .same_scale = options.same_scale});
}

}  // namespace heddle::inline v0::observe

// heddle/train/impl/measured_schedule.hpp: bodies of heddle/train/measured_schedule.hpp.
#pragma once

#include <heddle/train/measured_schedule.hpp>
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

HEDDLE_INLINE bool action_kind_of(activity what, schedule::action_kind& kind) noexcept {
  using schedule::action_kind;
  constexpr std::pair<activity, action_kind> kinds[] = {{activity::forward, action_kind::forward},
                                                        {activity::backward, action_kind::backward},
                                                        {activity::backward_input, action_kind::backward_input},
                                                        {activity::backward_weight, action_kind::backward_weight},
                                                        {activity::send, action_kind::send_forward},
                                                        {activity::recv, action_kind::recv_forward},
                                                        {activity::optimizer, action_kind::optimizer_step}};
  for (const auto& [of, to] : kinds)
    if (of == what) {
      kind = to;
      return true;
    }
  return false;
}

}  // namespace detail
}  // namespace heddle::inline v0::train

namespace heddle::inline v0::train {

HEDDLE_INLINE measured_times::measured_times(std::span<const event> events, schedule::table_view table) {
  std::map<std::array<int, 3>, schedule::action> second;  // of a pair, by the first
  for (std::size_t k = 0; k + 1 < table.actions().size(); ++k) {
    const schedule::action& a = table.actions()[k];
    if (a.overlaps_next) second[{static_cast<int>(a.kind), a.stage, a.microbatch}] = table.actions()[k + 1];
  }
  struct computed {
    const event* what = nullptr;
    bool beside = false;  // another, so that its time says nothing about what it takes alone
  };
  std::map<std::array<int, 5>, computed> work;  // by rank, step, kind, stage, microbatch
  for (const event& e : events) {
    schedule::action_kind kind{};
    if (e.stage >= 0 && observe::is_stage_work(e.kind) && detail::action_kind_of(e.kind, kind))
      work[{e.rank, e.step, static_cast<int>(kind), e.stage, e.microbatch}] = {&e};
  }
  for (auto& [of, first] : work) {
    const auto pair = second.find({of[2], of[3], of[4]});
    if (pair == second.end()) continue;
    const schedule::action& b = pair->second;
    const auto found = work.find({of[0], of[1], static_cast<int>(b.kind), b.stage, b.microbatch});
    if (found == work.end()) continue;
    computed& second_of_pair = found->second;
    const event &x = *first.what, &y = *second_of_pair.what;
    pairs_[{of[2], of[3], static_cast<int>(b.kind), b.stage}].add((std::min)(x.begin_ns, y.begin_ns),
                                                                  (std::max)(x.end_ns, y.end_ns));
    if (x.begin_ns < y.end_ns && y.begin_ns < x.end_ns) first.beside = second_of_pair.beside = true;
  }
  for (const auto& [of, c] : work)
    (c.beside ? paired_ : alone_)[{of[2], of[3], -1, -1}].add(c.what->begin_ns, c.what->end_ns);
}

HEDDLE_INLINE double measured_times::operator()(const schedule::action& a) const {
  for (const auto* times : {&alone_, &paired_}) {
    const auto found = times->find({static_cast<int>(a.kind), a.stage, -1, -1});
    if (found != times->end()) return found->second.mean();
  }
  return 0;
}

HEDDLE_INLINE schedule_comparison compare_with_simulation(std::span<const event> events, schedule::table_view table,
                                                          int step, std::vector<schedule_row> rows) {
  if (rows.empty())
    for (int r = 0; r < table.ranks(); ++r) rows.push_back({r, r});
  for (schedule_row& row : rows) {
    if (row.pipeline_rank < 0 || row.pipeline_rank >= table.ranks())
      throw schedule_error("heddle: a row shows rank " + std::to_string(row.pipeline_rank) +
                           " of a pipeline, the table has " + std::to_string(table.ranks()) + " ranks");
    if (row.name.empty()) row.name = "rank " + std::to_string(row.world_rank);
  }
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  schedule_comparison out;
  out.note = sim::shades_of(table);

  // Predicted: each row is its pipeline rank's.
  const sim::timeline line = sim::simulate(table, measured_times(events, table));
  const gantt_chart of_pipeline = sim::schedule_chart(table, line, "predicted", "ms");
  out.predicted = {.title = of_pipeline.title, .captions = of_pipeline.captions, .styles = of_pipeline.styles};
  out.predicted_bubble = line.bubble_ratio();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    out.predicted.rows.push_back(rows[k].name);
    for (gantt_box box : of_pipeline.boxes) {
      if (box.row != rows[k].pipeline_rank) continue;
      box.row = static_cast<int>(k);
      out.predicted.boxes.push_back(std::move(box));
    }
  }

  // Measured, in the same colours.
  gantt_chart& chart = out.measured;
  chart = {.title = "measured", .rows = out.predicted.rows, .styles = of_pipeline.styles};
  for (gantt_style& style : chart.styles)
    if (style.strip && !style.name.empty()) style.name += " (with waiting)";
  const int collective = static_cast<int>(chart.styles.size());
  chart.styles.push_back({"collective (with waiting)", "#d95c8c", "#000000", true, ""});
  const int other = collective + 1;
  chart.styles.push_back({"other", "#8b98a9", "#10151c", false, "?"});
  std::int64_t begin = (std::numeric_limits<std::int64_t>::max)(), end = (std::numeric_limits<std::int64_t>::min)();
  const auto row_of = [&rows](const event& e) {
    for (std::size_t k = 0; k < rows.size(); ++k)
      if (rows[k].world_rank == e.rank) return static_cast<int>(k);
    return -1;
  };
  for (const event& e : events) {
    if (e.step != step || !observe::is_stage_work(e.kind) || row_of(e) < 0) continue;
    begin = (std::min)(begin, e.begin_ns);
    end = (std::max)(end, e.end_ns);
  }
  // The two of a pair lie as in the prediction, whichever began first.
  std::map<std::array<int, 3>, gantt_lane> lane_in_pair;
  for (std::size_t k = 0; k + 1 < table.actions().size(); ++k) {
    const schedule::action &a = table.actions()[k], &b = table.actions()[k + 1];
    if (!a.overlaps_next) continue;
    lane_in_pair[{static_cast<int>(a.kind), a.stage, a.microbatch}] = gantt_lane::upper;
    lane_in_pair[{static_cast<int>(b.kind), b.stage, b.microbatch}] = gantt_lane::lower;
  }
  std::vector<gantt_lane> lanes;  // of each box that turns out to share its row
  const std::vector<int> place = sim::detail::places_on_rank(table);
  for (const event& e : events) {
    const int row = row_of(e);
    if (e.step != step || row < 0 || e.end_ns <= begin || e.begin_ns >= end) continue;
    gantt_box box{.row = row,
                  .style = e.kind == activity::collective ? collective : other,
                  .begin = static_cast<double>((std::max)(e.begin_ns, begin) - begin) * 1e-6,
                  .end = static_cast<double>((std::min)(e.end_ns, end) - begin) * 1e-6};
    schedule::action_kind kind{};
    if (detail::action_kind_of(e.kind, kind)) {
      const int shade =
          e.stage >= 0 && e.stage < table.stages() && observe::is_stage_work(e.kind) ? place[at(e.stage)] : 0;
      box.style = shade * schedule::action_kinds + static_cast<int>(kind);
    }
    if (e.microbatch >= 0) box.label = std::to_string(e.microbatch);
    const auto paired = lane_in_pair.find({static_cast<int>(kind), e.stage, e.microbatch});
    lanes.push_back(paired != lane_in_pair.end() && observe::is_stage_work(e.kind) ? paired->second
                                                                                   : gantt_lane::whole);
    chart.boxes.push_back(std::move(box));
  }
  std::vector<gantt_box*> work;
  for (gantt_box& b : chart.boxes)
    if (b.style < collective && !chart.styles[at(b.style)].strip) work.push_back(&b);
  observe::detail::share_rows(work);
  for (std::size_t k = 0; k < lanes.size(); ++k)
    if (chart.boxes[k].lane != gantt_lane::whole && lanes[k] != gantt_lane::whole) chart.boxes[k].lane = lanes[k];

  // The bubble of each pipeline by itself: that several do not start together is nobody's.
  std::vector<std::vector<int>> pipelines;
  std::vector<int> next(at(table.ranks()), 0);
  for (const schedule_row& row : rows) {
    const std::size_t which = at(next[at(row.pipeline_rank)]++);
    if (which >= pipelines.size()) pipelines.resize(which + 1);
    pipelines[which].push_back(row.world_rank);
  }
  std::vector<event> of_step;
  for (const event& e : events)
    if (e.step == step) of_step.push_back(e);
  double sum = 0;
  int counted = 0;
  for (const std::vector<int>& ranks : pipelines)
    for (const observe::bubble_report& report : observe::pipeline_bubbles(of_step, ranks)) {
      sum += report.bubble();
      ++counted;
    }
  out.measured_bubble = counted > 0 ? sum / counted : 0;
  chart.captions = {svg_number(chart.span()) + " ms",
                    "bubble " + sim::detail::rounded(100 * out.measured_bubble, 1) + " %"};
  return out;
}

}  // namespace heddle::inline v0::train

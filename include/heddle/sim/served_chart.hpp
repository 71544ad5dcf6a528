// heddle/sim/served_chart.hpp: draws what serving ranks did, and changes of degree.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/draw/gantt.hpp>
#include <heddle/sim/served_load.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// A row for each rank, with a box for what it did, labelled by how many ranks did it together (none: one alone). Steps of one kind that follow one another are one box. `rows`:
/// names of the ranks, of pools for instance. `scale`: units of the chart in a second.
/// Errors: `config_error` for ranks without a row.
inline gantt_chart served_chart(std::span<const served_span> spans, std::vector<std::string> rows,
                                std::string title = {}, double scale = 1) {
  const auto kind = [](const served_span& s) {
    return !s.is_step() ? 3 : s.prompt_rows == 0 ? 0 : s.answer_rows == 0 ? 1 : 2;
  };
  gantt_chart chart{.title = std::move(title),
                    .rows = std::move(rows),
                    .styles = {{.name = "answers", .fill = "#56d4a0", .ink = "#06281b", .letters = "A"},
                               {.name = "prompts", .fill = "#5aa9f7", .ink = "#08213b", .letters = "P"},
                               {.name = "both", .fill = "#4ccbe0", .ink = "#052a30", .letters = "B"},
                               {.name = "change of degree", .fill = "#ffb224", .ink = "#000000", .letters = "C"}}};
  std::vector<served_span> sorted(spans.begin(), spans.end());
  std::sort(sorted.begin(), sorted.end(), [](const served_span& a, const served_span& b) {
    return std::tuple(a.begin, a.end, a.first_rank) < std::tuple(b.begin, b.end, b.first_rank);
  });
  std::vector<std::size_t> last(chart.rows.size());  // box of each rank, counted from 1
  for (const served_span& s : sorted) {
    if (s.first_rank < 0 || s.ranks < 1 || s.first_rank + s.ranks > static_cast<int>(chart.rows.size()))
      throw config_error("heddle: served_chart: expected names of all ranks, got " + std::to_string(chart.rows.size()) +
                         " and ranks " + std::to_string(s.first_rank) + " to " +
                         std::to_string(s.first_rank + s.ranks - 1));
    const std::string label = s.ranks > 1 ? std::to_string(s.ranks) : "";
    for (int r = s.first_rank; r < s.first_rank + s.ranks; ++r) {
      std::size_t& of_rank = last[static_cast<std::size_t>(r)];
      gantt_box* const before = of_rank > 0 ? &chart.boxes[of_rank - 1] : nullptr;
      if (before != nullptr && before->style == kind(s) && before->label == label &&
          scale * s.begin - before->end <= 1e-9 * before->end) {
        before->end = scale * s.end;
        continue;
      }
      chart.boxes.push_back({r, kind(s), label, scale * s.begin, scale * s.end});
      of_rank = chart.boxes.size();
    }
  }
  return chart;
}

}  // namespace heddle::inline v0::sim

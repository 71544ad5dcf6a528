// heddle/sim/impl/gantt.hpp: bodies of heddle/sim/gantt.hpp.
#pragma once

#include <heddle/sim/gantt.hpp>
#include <heddle/draw/gantt.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/sim/action_table.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::sim {
namespace detail {

HEDDLE_INLINE std::string darker(std::string_view colour, double part) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out = "#";
  for (std::size_t k = 1; k + 1 < colour.size(); k += 2) {
    const std::size_t value = 16 * digits.find(colour[k]) + digits.find(colour[k + 1]);
    const auto dark = static_cast<std::size_t>(std::lround(static_cast<double>(value) * (1 - part)));
    out += digits[dark / 16 % 16];
    out += digits[dark % 16];
  }
  return out;
}

}  // namespace detail
}  // namespace heddle::inline v0::sim

namespace heddle::inline v0::sim {

HEDDLE_INLINE gantt_chart schedule_chart(schedule::table_view table, const timeline& line, const std::string& title,
                                         const std::string& unit) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  gantt_chart chart{.title = title};
  const std::vector<int> place = detail::places_on_rank(table);
  int places = 1;
  for (const int k : place) places = (std::max)(places, k + 1);
  for (int k = 0; k < places; ++k) {
    const double dark = places > 1 ? 0.42 * k / (places - 1) : 0.0;
    for (int kind = 0; kind < schedule::action_kinds; ++kind) {
      const detail::kind_style& style = detail::kind_styles[at(kind)];
      std::string letters(schedule::name(static_cast<schedule::action_kind>(kind)));
      if (k % 2 != 0)
        for (char& c : letters)
          if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      letters.append(at(k / 2), '\'');
      chart.styles.push_back({k == 0 ? style.name : "", detail::darker(style.fill, style.strip ? 0.0 : dark),
                              dark > 0.25 ? "#f5f8fb" : style.ink, style.strip, letters});
    }
  }
  for (int r = 0; r < table.ranks(); ++r) {
    chart.rows.push_back("rank " + std::to_string(r));
    bool second = false;
    for (int k = table.offset(r); k < table.offset(r + 1); ++k) {
      const schedule::action& a = table[k];
      const bool first = !second && a.overlaps_next && k + 1 < table.offset(r + 1);
      gantt_box box{
          .row = r,
          .style = (a.stage >= 0 ? place[at(a.stage)] : 0) * schedule::action_kinds + static_cast<int>(a.kind),
          .begin = line.start[at(k)],
          .end = line.end[at(k)]};
      if (a.microbatch >= 0) box.label = std::to_string(a.microbatch);
      if (first || second) box.lane = first ? gantt_lane::upper : gantt_lane::lower;
      if (box.end > box.begin) chart.boxes.push_back(std::move(box));
      second = first;
    }
  }
  std::string time = svg_number(line.makespan);
  if (!unit.empty()) time += " " + unit;
  chart.captions.push_back(time);
  chart.captions.push_back("bubble " + detail::rounded(100 * line.bubble_ratio(), 1) + " %");
  if (!table.forward_only() && table.ranks() > 0) {
    std::string held = "at most ";
    if (table.ranks() <= 8) {
      for (int r = 0; r < table.ranks(); ++r) {
        if (r > 0) held += ", ";
        held += detail::rounded(peak_microbatches(table, r), 2);
      }
    } else {
      double most = 0;
      for (int r = 0; r < table.ranks(); ++r) most = (std::max)(most, peak_microbatches(table, r));
      held += detail::rounded(most, 2);
    }
    chart.captions.push_back(held + (table.has_paths() ? " activations of a stage alive" : " microbatches alive"));
  }
  return chart;
}

}  // namespace heddle::inline v0::sim

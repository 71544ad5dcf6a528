// heddle/sim/gantt.hpp: a pipeline schedule as a picture and as a drawing in letters.
#pragma once

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

struct kind_style {
  const char* name;
  const char* fill;
  const char* ink;
  bool strip;
};
// By action_kind.
inline constexpr std::array<kind_style, schedule::action_kinds> kind_styles{{
    {"forward", "#5aa9f7", "#08213b", false},
    {"backward", "#56d4a0", "#06281b", false},
    {"input gradient", "#4ccbe0", "#052a30", false},
    {"weight gradient", "#b7d968", "#222d05", false},
    {"send", "#ffb224", "#000000", true},
    {"receive", "#a3660c", "#000000", true},
    {"send", "#ffb224", "#000000", true},
    {"receive", "#a3660c", "#000000", true},
    {"recompute", "#a9b8ff", "#131b40", false},
    {"offload", "#e79a6b", "#2e1405", false},
    {"reload", "#e79a6b", "#2e1405", false},
    {"gather weights", "#d95c8c", "#2d0616", false},
    {"drop weights", "#d95c8c", "#2d0616", false},
    {"reduce gradients", "#d95c8c", "#2d0616", false},
    {"optimizer", "#b18cf5", "#1f0f3d", false},
}};

// A colour "#rrggbb", darker by this part.
inline std::string darker(std::string_view colour, double part) {
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

// For each stage, how many stages of smaller number are on its rank.
inline std::vector<int> places_on_rank(schedule::table_view table) {
  std::vector<int> count(static_cast<std::size_t>(table.ranks()), 0), place;
  for (const int r : table.rank_of_stage()) place.push_back(count[static_cast<std::size_t>(r)]++);
  return place;
}

inline std::string rounded(double value, int decimals) {
  const double power = std::pow(10.0, decimals);
  return heddle::detail::svg_number(std::round(value * power) / power);
}

}  // namespace detail

/// What a table keeps alive on a rank at most, in microbatches' activations of one rank's share of the model: a stage
/// that is a v-th of it counts as a v-th. Takes stages to be of one size. Where microbatches go ways of their own, no
/// rank has a share of the model: each stage of a microbatch counts as one, as in `schedule::peak_live`.
inline double peak_microbatches(schedule::table_view table, int rank) {
  if (table.has_paths()) return schedule::peak_live(table, rank);
  return static_cast<double>(schedule::peak_live(table, rank)) * table.ranks() / (std::max)(table.parts(), 1);
}

/// A table and when its actions run as a chart: a row per rank, a colour per kind, darker for the further stages of a
/// rank (and for the other direction of Chimera and DualPipe); two that overlap share the row's height; what takes no
/// time is not drawn. The caption says how long the step takes, in `unit`, how much of the ranks' time is bubble, and
/// what activations a rank holds at most (see `peak_microbatches`).
inline gantt_chart schedule_chart(schedule::table_view table, const timeline& line, const std::string& title = {},
                                  const std::string& unit = {}) {
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
  std::string time = heddle::detail::svg_number(line.makespan);
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

/// What the shades of a table's pictures mean; empty if a rank has one stage only.
inline std::string shades_of(schedule::table_view table) {
  if (table.chains() > 1) return "darker: microbatches that enter at the last rank";
  return table.stages() > table.ranks() ? "darker: the further stages of a rank" : "";
}

/// The chart as a picture; see `gantt_svg` for what else can be drawn with it.
inline std::string schedule_svg(schedule::table_view table, const timeline& line, const std::string& title = {},
                                gantt_options options = {.unit = ""}) {
  if (options.note.empty()) options.note = shades_of(table);
  return gantt_svg(schedule_chart(table, line, title, options.unit), options);
}

/// The chart in letters: F, B, I, W and the microbatch if there is room, f, b, i, w for the second stage of a rank (or
/// the other direction), F' for the third and so on; dashes while it runs, dots while the rank idles, a plus sign
/// between two that overlap. `columns`: characters at most for the time.
inline std::string schedule_text(schedule::table_view table, const timeline& line, const std::string& title = {},
                                 int columns = 120) {
  return gantt_text(schedule_chart(table, line, title), columns);
}

}  // namespace heddle::inline v0::sim

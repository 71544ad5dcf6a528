// heddle/sim/gantt.hpp: a pipeline schedule as a picture and as a drawing in letters.
#pragma once

#include <heddle/core/config.hpp>
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
HEDDLE_INLINE std::string darker(std::string_view colour, double part);

// For each stage, how many stages of smaller number are on its rank.
inline std::vector<int> places_on_rank(schedule::table_view table) {
  std::vector<int> count(static_cast<std::size_t>(table.ranks()), 0), place;
  for (const int r : table.rank_of_stage()) place.push_back(count[static_cast<std::size_t>(r)]++);
  return place;
}

inline std::string rounded(double value, int decimals) {
  const double power = std::pow(10.0, decimals);
  return svg_number(std::round(value * power) / power);
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
HEDDLE_INLINE gantt_chart schedule_chart(schedule::table_view table, const timeline& line,
                                         const std::string& title = {}, const std::string& unit = {});

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

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/gantt.hpp>
#endif

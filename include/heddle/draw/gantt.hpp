// heddle/draw/gantt.hpp: Gantt charts: rows of boxes over time, as an SVG picture and as text.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/svg.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// How the boxes of one kind look. Styles of one fill share an entry of the legend; one without a name has none.
struct gantt_style {
  std::string name = {};         ///< in the legend: "forward"
  std::string fill = "#8b98a9";  ///< of the box
  std::string ink = "#10151c";   ///< of the label
  bool strip = false;            ///< a thin strip under the boxes, for what runs beside them
  std::string letters = {};      ///< what a box begins with as text: "F"
};

/// Where a box stands in its row: two that run at the same time share its height.
enum class gantt_lane : std::uint8_t { whole, upper, lower };

/// One thing that was done. `begin` and `end` in the chart's unit, from its left edge.
struct gantt_box {
  int row = 0;
  int style = 0;           ///< which of the chart's
  std::string label = {};  ///< inside, if there is room: the microbatch, say
  double begin = 0;
  double end = 0;
  gantt_lane lane = gantt_lane::whole;
};

/// One chart: a row per rank, node or stage.
struct gantt_chart {
  std::string title = {};                  ///< "measured"
  std::vector<std::string> captions = {};  ///< "bubble 27.3 %", "peak memory 41 MiB"; shown beside the title
  std::vector<std::string> rows = {};      ///< labels, top to bottom
  std::vector<gantt_style> styles = {};
  std::vector<gantt_box> boxes = {};

  /// When the last box ends.
  double span() const noexcept {
    double end = 0;
    for (const gantt_box& b : boxes) end = (std::max)(end, b.end);
    return end;
  }
};

/// What a Gantt chart shows besides its boxes, and how wide it is.
struct gantt_options {
  std::string title = {};     ///< of the whole picture
  std::string subtitle = {};  ///< mesh, schedule, machine
  std::string note = {};      ///< in the legend, behind the kinds
  std::string unit = "ms";    ///< of the time axis
  double shown = 0;           ///< the time axis goes at least so far: one scale for several pictures
  int width = 1200;           ///< pixels
  bool same_scale = true;     ///< one time scale for all charts; otherwise each chart fills the width
};

namespace detail {

// The step between ticks of an axis: 1, 2 or 5 times a power of ten, with at most `most` steps in `range`.
HEDDLE_INLINE double tick_step(double range, int most);

class gantt_drawing {
 public:
  gantt_drawing(std::span<const gantt_chart> charts, const gantt_options& options);

  std::string text() const;

 private:
  static constexpr double margin = 24.0;
  static constexpr double box_height = 22.0;
  static constexpr double strip_height = 5.0;
  struct placed_label {
    const gantt_box* box;
    double x, y;
  };

  double header();

  // Title and captions; the captions wrap between each other, never within one. Returns where the rows begin.
  double titles(const gantt_chart& c, double y);

  void axis(double range, double top, double bottom);
  // A tick's label with as many decimals as the step needs.
  std::string tick(double value, double step) const {
    if (step >= 0.01 || options_.unit != "ms") return svg_number(value);
    return svg_number(value * 1000.0) + " \u00b5s";
  }

  double chart(const gantt_chart& c, double y, double range);

  static bool known(const gantt_chart& c, const gantt_box& b) {
    return b.row >= 0 && static_cast<std::size_t>(b.row) < c.rows.size() && b.style >= 0 &&
           static_cast<std::size_t>(b.style) < c.styles.size() && b.end > b.begin;
  }

  void boxes(const gantt_chart& c, double top, double row_height, double scale);
  static double size_of(const gantt_box& b) noexcept { return b.lane == gantt_lane::whole ? 11.0 : 9.0; }

  void use(const gantt_style& style) {
    for (const gantt_style* s : used_)
      if (s->name == style.name && s->fill == style.fill && s->strip == style.strip) return;
    used_.push_back(&style);
  }

  // One entry per colour that occurs; kinds that share a colour share the entry.
  double legend(double y);

  const gantt_options& options_;
  double width_;
  double left_ = 90.0;
  double height_ = 0.0;
  std::vector<const gantt_style*> used_;
  svg_drawing out_;
};

// Characters per unit of time: so that the shortest box has up to four of them, if there is room for so many.
HEDDLE_INLINE double gantt_columns_per_unit(std::span<const gantt_chart> charts, double range, int columns);

// The chart with so many characters per unit of time.
HEDDLE_INLINE std::string gantt_letters(const gantt_chart& chart, double per_unit);

}  // namespace detail

/// The picture as text: the charts one above the other, a row per rank, idle time hatched, strips under the boxes.
/// Stands alone: no scripts, no external fonts or styles. The same on every machine if times are small multiples of
/// powers of two.
inline std::string gantt_svg(std::span<const gantt_chart> charts, const gantt_options& options = {}) {
  return detail::gantt_drawing(charts, options).text();
}
inline std::string gantt_svg(const gantt_chart& chart, const gantt_options& options = {}) {
  return gantt_svg(std::span<const gantt_chart>(&chart, 1), options);
}

/// Charts in letters, for a terminal: a line per row, each box its style's letters and its label, drawn out with dashes;
/// dots are idle time. Boxes in the two lanes of a row are joined by a plus sign; strips are left out. All charts have
/// one scale. `columns`: characters for the time axis at most; `shown`: it goes at least so far, in the charts' unit.
HEDDLE_INLINE std::string gantt_text(std::span<const gantt_chart> charts, int columns = 120, double shown = 0);
inline std::string gantt_text(const gantt_chart& chart, int columns = 120, double shown = 0) {
  return gantt_text(std::span<const gantt_chart>(&chart, 1), columns, shown);
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/draw/impl/gantt.hpp>
#endif

// heddle/layout/describe_svg.hpp: draws the parts of a tensor by rank, as SVG.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/layout/describe.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// Lines over contributions, dots over unrelated values; a pattern leaves the rank's colour visible.
inline constexpr std::string_view holdings_patterns =
    "<pattern id=\"partial\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
    "<rect width=\"2.2\" height=\"7\" fill=\"#000\" fill-opacity=\"0.5\"/></pattern>"
    "<pattern id=\"varying\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\">"
    "<rect x=\"2\" y=\"2\" width=\"2.6\" height=\"2.6\" rx=\"1.3\" fill=\"#000\" fill-opacity=\"0.6\"/></pattern>";

namespace picture {
inline constexpr double margin = 24.0;
inline constexpr std::string_view background = "#0f141b";
inline constexpr std::string_view faint = "#1e2631";
inline constexpr std::string_view border = " stroke=\"#0f141b\" stroke-width=\"1\"";
inline constexpr std::string_view outline = " stroke=\"#3b4757\" stroke-width=\"1\"";
inline constexpr std::string_view bright = "#f2f5f9";
inline constexpr std::string_view normal = "#c4cfdb";
inline constexpr std::string_view dim = "#8593a5";
inline constexpr double title_width = 900.0;
}  // namespace picture

inline constexpr std::size_t most_blocks_drawn = 14;
inline constexpr std::size_t most_slices_drawn = 6;
inline constexpr std::size_t most_rows_of_slices = 4;
inline constexpr std::size_t most_sheets_drawn = 4;
inline constexpr std::size_t most_ranks_drawn = 16;
inline constexpr std::size_t most_ranges_drawn = 24;

class holdings_drawing {
 public:
  holdings_drawing(const tensor_holdings& h, svg_drawing& to) : h_(h), holders_(h), to_(to) {}

  // The tensor as a whole: its blocks in the colours of their holders, copies and contributions as sheets behind.
  // Returns the y below.
  double tensor(double x, double y);

  // What each axis does, a line each. Returns the y below.
  double axes(double x, double y);

  // A small picture per rank: the whole tensor, and what the rank holds of it. Returns the y below.
  double ranks(double x, double y, bool with_coordinates = true);

 private:
  static constexpr double sheet_step = 9.0;

  bool no_elements() const {
    return std::any_of(h_.blocks.begin(), h_.blocks.end(), [](const auto& b) { return b.empty(); });
  }
  // How many ranks hold one block.
  std::size_t copies() const;
  double small_width() const {
    if (h_.extents.size() < 3) return 100.0;
    return (std::max)(100.0,
                      34.0 * static_cast<double>(shown_blocks(h_, h_.extents.size() - 3, most_slices_drawn).size()));
  }
  double small_height() const {
    if (h_.extents.size() < 4) return h_.extents.size() == 1 ? 18.0 : 62.0;
    return (std::max)(62.0, 34.0 * static_cast<double>(shown_blocks(h_, 0, most_rows_of_slices).size()));
  }
  void small_words(double x, double y, const std::string& text, std::string_view fill, double room) {
    to_.words(x, y, svg_fitted(text, 10.5, room + 10.0), 10.5, fill);
  }
  static std::string_view pattern_of(axis_role role) {
    return role == axis_role::partial ? "url(#partial)" : role == axis_role::varying ? "url(#varying)" : "";
  }
  void paint(double x, double y, double w, double h, int rank) {
    to_.rect(x, y, w, h, rank_colour(rank), 0.0, picture::border);
    for (const axis_role role : {axis_role::partial, axis_role::varying})
      if (h_.has(role)) to_.rect(x, y, w, h, pattern_of(role));
  }

  // Where each shown block begins, and where the last one ends: in proportion, but no label is cut.
  static std::vector<double> places(const std::vector<index_range>& blocks, const std::vector<std::size_t>& shown,
                                    const std::vector<double>& least, double room);

  // The planes beside each other, one per block of the dimension before the last two. Returns the y below.
  double slices(const std::vector<std::size_t>& before, double x, double y, double lift);

  // One plane of blocks at x, y; returns its right and lower end.
  std::pair<double, double> grid(const std::vector<std::size_t>& before, double x, double y, double height,
                                 double width);

  // Whether a rank holds some of what is shown of a dimension at place k: a block, or those that are left out.
  bool holds_shown(const held_part& p, std::size_t dim, const std::vector<std::size_t>& shown, std::size_t k) const;

  // The tensor in outline, and in the rank's colour what it holds: planes beside each other, of four dimensions also below
  // each other.
  void part(const held_part& p, int rank, double x, double y, double w, double h, std::size_t dim = 0,
            bool held = true);
  void plane(const held_part& p, int rank, std::size_t first, double x, double y, double w, double h);
  struct stretch {
    double from = 0.0;
    double to = 0.0;
  };
  // As shares of the dimension; many ranges become one, drawn paler.
  static std::vector<stretch> stretches(const held_dimension& d, std::int64_t extent) {
    std::vector<stretch> out;
    const auto share = [extent](std::int64_t i) { return static_cast<double>(i) / static_cast<double>(extent); };
    if (d.ranges.empty()) return out;
    if (d.ranges.size() > most_ranges_drawn)
      return {{share(d.ranges.front().begin), d.complete ? share(d.ranges.back().end) : 1.0}};
    for (const index_range& r : d.ranges) out.push_back({share(r.begin), share(r.end)});
    return out;
  }

  const tensor_holdings& h_;
  holders_writer holders_;
  svg_drawing& to_;
};

HEDDLE_INLINE std::string holdings_svg(const tensor_holdings& h);

}  // namespace detail

/// An SVG picture of who holds what of a tensor of shape `s`: its blocks in the colours of the ranks that hold them (of three
/// dimensions a slice per block of dimension 0, of four a row of slices), copies as sheets behind, contributions hatched, unrelated values dotted;
/// below it a small picture per rank, which is the legend too.
/// Shapes: 1 to 4 dimensions. Units: elements.
/// Errors: `layout_error` for another number of dimensions, or one that lacks a dimension the layout splits.
template <layout_like L, std::int64_t... E>
std::string describe_svg(const L& layout, const shape<E...>& s) {
  return detail::holdings_svg(detail::holdings_of(layout, s));
}

/// The same for a small shape with as many dimensions as the layout needs.
template <layout_like L>
std::string describe_svg(const L& layout) {
  return describe_svg(layout, detail::illustrative_shape(layout));
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/layout/impl/describe_svg.hpp>
#endif

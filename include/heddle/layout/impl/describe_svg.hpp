// heddle/layout/impl/describe_svg.hpp: bodies of heddle/layout/describe_svg.hpp.
#pragma once

#include <heddle/layout/describe_svg.hpp>
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

HEDDLE_INLINE double holdings_drawing::tensor(double x, double y) {
  const std::size_t sheets = (std::min)(copies(), most_sheets_drawn);
  const double lift = sheet_step * static_cast<double>(sheets - 1);
  if (no_elements()) {
    to_.words(x, y + 16.0, "no elements", 13.0, picture::normal);
    return y + 28.0;
  }
  if (h_.extents.size() < 3) return grid({}, x, y + lift, h_.extents.size() == 1 ? 0.0 : 190.0, 400.0).second;
  if (h_.extents.size() == 3) return slices({}, x, y, lift);
  for (const std::size_t i : shown_blocks(h_, 0, most_rows_of_slices)) {
    to_.words(x, y + 14.0, "dimension 0: " + (i == left_out ? "\u2026" : range_text(h_.blocks[0][i])), 12.0,
              picture::bright);
    y = i == left_out ? y + 26.0 : slices({i}, x + 16.0, y + 18.0, lift) + 10.0;
  }
  return y;
}

HEDDLE_INLINE double holdings_drawing::axes(double x, double y) {
  for (const held_axis& a : h_.axes) {
    y += 18.0;
    double at = x;
    if (a.use.role == axis_role::sharded) {
      to_.rect(at, y - 10.0, 8.0, 12.0, picture::normal);
      to_.rect(at + 10.0, y - 10.0, 8.0, 12.0, picture::normal);
    } else {
      to_.rect(at + 4.0, y - 13.0, 14.0, 12.0, picture::dim, 0.0, picture::border);
      to_.rect(at, y - 10.0, 14.0, 12.0, picture::normal, 0.0, picture::border);
      if (const auto pattern = pattern_of(a.use.role); !pattern.empty()) {
        to_.rect(at + 4.0, y - 13.0, 14.0, 12.0, pattern);
        to_.rect(at, y - 10.0, 14.0, 12.0, pattern);
      }
    }
    to_.words(at + 28.0, y, axis_text(a, h_.axes), 12.5, picture::normal);
  }
  return y + 6.0;
}

HEDDLE_INLINE double holdings_drawing::ranks(double x, double y, bool with_coordinates) {
  const double width = small_width();
  const double height = small_height();
  double at = x, bottom = y;
  for (const std::size_t r : first_and_last(h_.ranks.size(), most_ranks_drawn)) {
    if (r == left_out) {
      to_.words(at, y + 30.0, "\u2026", 20.0, picture::normal);
      at += 40.0;
      continue;
    }
    if (at > x && at + width > 8 * 116.0 + x) {
      at = x;
      y = bottom + 12.0;
    }
    const held_part& p = h_.ranks[r];
    const int rank = static_cast<int>(r);
    to_.rect(at, y, 11.0, 11.0, rank_colour(rank), 2.0);
    to_.words(at + 16.0, y + 10.0, "rank " + std::to_string(r), 12.0, picture::bright, "start", true);
    part(p, rank, at, y + 17.0, width, height);
    double line = y + 17.0 + height + 14.0;
    std::vector<std::int64_t> sizes, stored;
    for (const held_dimension& d : p.dims) {
      sizes.push_back(d.size);
      stored.push_back(d.stored);
    }
    small_words(at, line, extents_text(sizes) + (p.empty() ? ": nothing" : ""), picture::normal, width);
    if (sizes != stored) small_words(at, line += 13.0, "in " + extents_text(stored), picture::normal, width);
    if (with_coordinates && !h_.axes.empty()) {
      std::string text;
      for (std::size_t a = 0; a < h_.axes.size(); ++a) {
        if (a > 0) text += ", ";
        text += h_.axes[a].name + " " + std::to_string(p.coordinates[a]);
      }
      small_words(at, line += 13.0, text, picture::dim, width);
    }
    bottom = (std::max)(bottom, line + 4.0);
    at += width + 16.0;
  }
  return bottom;
}

HEDDLE_INLINE std::size_t holdings_drawing::copies() const {
  std::size_t n = 1;
  for (const held_axis& a : h_.axes)
    if (a.use.role != axis_role::sharded) n *= static_cast<std::size_t>(a.extent);
  return n;
}

HEDDLE_INLINE std::vector<double> holdings_drawing::places(const std::vector<index_range>& blocks,
                                                           const std::vector<std::size_t>& shown,
                                                           const std::vector<double>& least, double room) {
  std::int64_t total = 0;
  for (const std::size_t i : shown) total += i == left_out ? 0 : blocks[i].end - blocks[i].begin;
  std::vector<double> at{0.0};
  for (std::size_t k = 0; k < shown.size(); ++k) {
    const double share =
        shown[k] == left_out
            ? 0.0
            : room * static_cast<double>(blocks[shown[k]].end - blocks[shown[k]].begin) / static_cast<double>(total);
    at.push_back(at.back() + (std::max)(share, least[k]));
  }
  return at;
}

HEDDLE_INLINE double holdings_drawing::slices(const std::vector<std::size_t>& before, double x, double y, double lift) {
  const std::size_t dim = before.size();
  double row_top = y, row_bottom = y, at = x;
  for (const std::size_t i : shown_blocks(h_, dim, most_slices_drawn)) {
    if (i == left_out) {
      to_.words(at, row_top + 60.0, "\u2026", 20.0, picture::normal);
      at += 40.0;
      continue;
    }
    if (at > x && at > 620.0) {
      at = x;
      row_top = row_bottom + 10.0;
    }
    std::vector<std::size_t> block = before;
    block.push_back(i);
    to_.words(at, row_top + 14.0, "dimension " + std::to_string(dim) + ": " + range_text(h_.blocks[dim][i]), 12.0,
              picture::normal);
    const auto [right, bottom] = grid(block, at, row_top + 18.0 + lift, 110.0, 190.0);
    at = (std::max)(right, at + 150.0) + lift + 26.0;
    row_bottom = (std::max)(row_bottom, bottom);
  }
  return row_bottom;
}

HEDDLE_INLINE std::pair<double, double> holdings_drawing::grid(const std::vector<std::size_t>& before, double x,
                                                               double y, double height, double width) {
  const std::size_t columns_dim = h_.extents.size() - 1;
  const bool has_rows = h_.extents.size() > 1;
  const auto columns = shown_blocks(h_, columns_dim, most_blocks_drawn);
  const auto rows = has_rows ? shown_blocks(h_, columns_dim - 1, most_blocks_drawn) : std::vector<std::size_t>{0};
  double margin = 0.0;
  for (const std::size_t r : rows)
    if (has_rows) margin = (std::max)(margin, svg_text_width(block_text(h_, columns_dim - 1, r), 11.0) + 8.0);
  std::vector<std::vector<std::vector<int>>> holders(rows.size());
  std::vector<double> widths(columns.size()), heights(rows.size(), 24.0);
  for (std::size_t c = 0; c < columns.size(); ++c)
    widths[c] = svg_text_width(block_text(h_, columns_dim, columns[c]), 11.0) + 8.0;
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::vector<std::size_t> block = before;
      if (has_rows) block.push_back(rows[r]);
      block.push_back(columns[c]);
      const bool there = std::find(block.begin(), block.end(), left_out) == block.end();
      holders[r].push_back(there ? h_.holders(block) : std::vector<int>{});
      if (there) widths[c] = (std::max)(widths[c], svg_text_width(holders_(holders[r][c]), 12.0) + 16.0);
    }
  const auto xs = places(h_.blocks[columns_dim], columns, widths, width);
  const auto ys = has_rows ? places(h_.blocks[columns_dim - 1], rows, heights, height) : std::vector<double>{0.0, 44.0};
  const double left = x + margin;
  const double top = y + 18.0;
  const std::size_t sheets = (std::min)(copies(), most_sheets_drawn);
  for (std::size_t k = sheets; k-- > 0;) {
    const double shift = sheet_step * static_cast<double>(k);
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::size_t c = 0; c < columns.size(); ++c) {
        const auto& ranks = holders[r][c];
        const double cell_x = left + xs[c] + shift, cell_y = top + ys[r] - shift;
        const double w = xs[c + 1] - xs[c], h = ys[r + 1] - ys[r];
        if (ranks.empty()) {
          to_.rect(cell_x, cell_y, w, h, picture::faint, 0.0, picture::border);
          if (k == 0) to_.words(cell_x + w / 2, cell_y + h / 2 + 4.0, "\u2026", 12.0, picture::dim, "middle");
          continue;
        }
        // The last sheet drawn stands for the last rank, the others for the first ones.
        const std::size_t which = k + 1 == sheets ? ranks.size() - 1 : (std::min)(k, ranks.size() - 1);
        paint(cell_x, cell_y, w, h, ranks[which]);
        if (k != 0) continue;
        const std::string label = holders_(ranks);
        const double label_width = svg_text_width(label, 12.0);
        if (h_.has(axis_role::partial) || h_.has(axis_role::varying))
          to_.rect(cell_x + w / 2 - label_width / 2 - 5.0, cell_y + h / 2 - 9.0, label_width + 10.0, 18.0,
                   rank_colour(ranks[0]), 4.0);
        to_.words(cell_x + w / 2, cell_y + h / 2 + 4.5, label, 12.0, rank_text_colour(ranks[0]), "middle", true);
      }
  }
  const double lower = top + ys.back();
  for (std::size_t c = 0; c < columns.size(); ++c)  // below, where no sheet is
    to_.words(left + (xs[c] + xs[c + 1]) / 2, lower + 15.0, block_text(h_, columns_dim, columns[c]), 11.0, picture::dim,
              "middle");
  for (std::size_t r = 0; has_rows && r < rows.size(); ++r)
    to_.words(left - 6.0, top + (ys[r] + ys[r + 1]) / 2 + 4.0, block_text(h_, columns_dim - 1, rows[r]), 11.0,
              picture::dim, "end");
  return {left + xs.back(), lower + 22.0};
}

HEDDLE_INLINE bool holdings_drawing::holds_shown(const held_part& p, std::size_t dim,
                                                 const std::vector<std::size_t>& shown, std::size_t k) const {
  const auto held = [&](std::size_t block) {
    const std::int64_t i = h_.blocks[dim][block].begin;
    return std::any_of(p.dims[dim].ranges.begin(), p.dims[dim].ranges.end(),
                       [i](const index_range& r) { return r.begin <= i && i < r.end; });
  };
  if (shown[k] != left_out) return held(shown[k]);
  const std::size_t end = k + 1 < shown.size() ? shown[k + 1] : h_.blocks[dim].size();
  bool any = h_.more_blocks[dim] && k + 1 == shown.size() && !p.dims[dim].complete;
  for (std::size_t block = k == 0 ? 0 : shown[k - 1] + 1; block < end && !any; ++block) any = held(block);
  return any && !p.empty();
}

HEDDLE_INLINE void holdings_drawing::part(const held_part& p, int rank, double x, double y, double w, double h,
                                          std::size_t dim, bool held) {
  const std::size_t lead = h_.extents.size() < 3 ? 0 : h_.extents.size() - 2;
  if (dim == lead) {
    if (held)
      plane(p, rank, lead, x, y, w, h);
    else
      to_.rect(x, y, w, h, picture::faint, 0.0, picture::outline);
    return;
  }
  const bool down = dim + 1 < lead;
  const auto shown = shown_blocks(h_, dim, down ? most_rows_of_slices : most_slices_drawn);
  const double each = (down ? h : w) / static_cast<double>((std::max)(shown.size(), std::size_t{1}));
  for (std::size_t k = 0; k < shown.size(); ++k) {
    const double at_x = down ? x : x + each * static_cast<double>(k);
    const double at_y = down ? y + each * static_cast<double>(k) : y;
    const double own_w = down ? w : each - 4.0, own_h = down ? each - 4.0 : h;
    const bool any = held && holds_shown(p, dim, shown, k);
    if (shown[k] != left_out) {
      part(p, rank, at_x, at_y, own_w, own_h, dim + 1, any);
      continue;
    }
    if (any) to_.rect(at_x, at_y, own_w, own_h, rank_colour(rank), 0.0, " fill-opacity=\"0.45\"");
    to_.words(at_x + (down ? w : each) / 2, at_y + (down ? each : h) / 2, "\u2026", 12.0,
              any ? picture::bright : picture::dim, "middle");
  }
}

HEDDLE_INLINE void holdings_drawing::plane(const held_part& p, int rank, std::size_t first, double x, double y,
                                           double w, double h) {
  to_.rect(x, y, w, h, picture::faint, 0.0, picture::outline);
  const std::size_t last = h_.extents.size() - 1;
  const std::vector<stretch> one{{0.0, 1.0}};
  const auto columns = stretches(p.dims[last], h_.extents[last]);
  const auto rows = first == last ? one : stretches(p.dims[last - 1], h_.extents[last - 1]);
  const bool thinned = p.dims[last].ranges.size() > most_ranges_drawn ||
                       (first != last && p.dims[last - 1].ranges.size() > most_ranges_drawn);
  if (p.empty()) return;
  for (const auto& r : rows)
    for (const auto& c : columns) {
      const double bx = x + w * c.from, by = y + h * r.from;
      const double bw = (std::max)(w * (c.to - c.from), 1.0), bh = (std::max)(h * (r.to - r.from), 1.0);
      if (thinned)
        to_.rect(bx, by, bw, bh, rank_colour(rank), 0.0, " fill-opacity=\"0.45\"");
      else
        to_.rect(bx, by, bw, bh, rank_colour(rank));
      for (const axis_role role : {axis_role::partial, axis_role::varying})
        if (h_.has(role)) to_.rect(bx, by, bw, bh, pattern_of(role));
    }
}

HEDDLE_INLINE std::string holdings_svg(const tensor_holdings& h) {
  svg_drawing to;
  holdings_drawing drawing(h, to);
  double y = picture::margin + 16.0;
  to.words(picture::margin, y, svg_fitted(h.layout, 17.0, picture::title_width), 17.0, picture::bright, "start", true);
  y += 20.0;
  std::string text = "tensor " + extents_text(h.extents) + "; numbers are ranks";
  text += holders_key(h);
  to.words(picture::margin, y, svg_fitted(text, 12.5, picture::title_width), 12.5, picture::dim);
  y = drawing.axes(picture::margin, y + 4.0);
  y = drawing.tensor(picture::margin, y + 10.0);
  drawing.ranks(picture::margin, y + 16.0);
  return to.text(holdings_patterns, picture::margin, picture::background);
}

}  // namespace detail
}  // namespace heddle::inline v0

// heddle/layout/describe.hpp: draws the parts of a tensor that each rank holds, in text.
#pragma once

#include <heddle/layout/tensor_holdings.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// How many blocks, ranges, ranks are written before the rest is left out.
inline constexpr std::size_t most_blocks_written = 12;
inline constexpr std::size_t most_ranges_written = 4;
inline constexpr std::size_t most_ranks_written = 32;
inline constexpr std::size_t most_slices_written = 6;
inline constexpr std::size_t most_slices_of_two = 4;  // of each of two dimensions
inline constexpr std::size_t left_out = static_cast<std::size_t>(-1);

// The first of `count` things and the last one, `left_out` between them, if there are more than `most`.
inline std::vector<std::size_t> first_and_last(std::size_t count, std::size_t most) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < count; ++i) {
    if (count > most && i + 2 >= most && i + 1 < count) {
      if (out.back() != left_out) out.push_back(left_out);
    } else {
      out.push_back(i);
    }
  }
  return out;
}

// `0..4`, or `4` for one element.
inline std::string range_text(const index_range& r) {
  std::string text = std::to_string(r.begin);
  if (r.end - r.begin > 1) {
    text += "..";
    text += std::to_string(r.end - 1);
  }
  return text;
}

inline std::string ranges_text(const held_dimension& d) {
  if (d.ranges.empty()) return "none";
  std::string text;
  for (const std::size_t i : first_and_last(d.ranges.size(), most_ranges_written)) {
    if (!text.empty()) text += ",";
    text += i == left_out ? ".." : range_text(d.ranges[i]);
    if (i == left_out && !d.complete) break;
  }
  return text;
}

inline std::string extents_text(const std::vector<std::int64_t>& extents) {
  std::string text;
  for (const std::int64_t e : extents) {
    if (!text.empty()) text += " x ";
    text += std::to_string(e);
  }
  return text;
}

inline std::string op_symbol(const std::string& op) {
  if (op == "plus") return "+";
  if (op == "multiplies") return "*";
  if (op == "maximum") return " max ";
  if (op == "minimum") return " min ";
  return " " + op + " ";
}

// The ranks that hold one block, outermost what differs most: unrelated values `|`, contributions (`+` or the operator's
// name), copies `,` and copies of one computation `=`. `(0,1)+(2,3)`: a contribution that 0 and 1 hold, and another.
class holders_writer {
 public:
  explicit holders_writer(const tensor_holdings& h) : h_(h) {}

  std::string operator()(const std::vector<int>& ranks) const { return ranks.empty() ? "-" : level(0, ranks).first; }

 private:
  static constexpr axis_role order[]{axis_role::varying, axis_role::partial, axis_role::replicated,
                                     axis_role::identical};
  static constexpr std::size_t levels = sizeof(order) / sizeof(order[0]);

  std::string separator(std::size_t at) const {
    if (order[at] == axis_role::varying) return "|";
    if (order[at] == axis_role::replicated) return ",";
    if (order[at] == axis_role::identical) return "=";
    for (const held_axis& a : h_.axes)
      if (a.use.role == axis_role::partial) return op_symbol(a.op);
    return "+";
  }
  bool same(std::size_t at, int a, int b) const {
    for (std::size_t i = 0; i < h_.axes.size(); ++i)
      if (h_.axes[i].use.role == order[at] && coordinate(a, i) != coordinate(b, i)) return false;
    return true;
  }
  int coordinate(int rank, std::size_t axis) const {
    return h_.ranks[static_cast<std::size_t>(rank)].coordinates[axis];
  }

  // The text, and whether it joins several.
  std::pair<std::string, bool> level(std::size_t at, const std::vector<int>& ranks) const {
    if (at == levels) return {std::to_string(ranks.front()), false};
    std::vector<std::vector<int>> groups;
    for (const int r : ranks) {
      const auto group =
          std::find_if(groups.begin(), groups.end(), [&](const std::vector<int>& g) { return same(at, g.front(), r); });
      if (group == groups.end())
        groups.push_back({r});
      else
        group->push_back(r);
    }
    if (groups.size() == 1) return level(at + 1, ranks);
    const bool consecutive =
        groups.size() == ranks.size() && ranks.back() - ranks.front() == static_cast<int>(ranks.size()) - 1;
    if (consecutive && groups.size() > 4 && separator(at) == ",")
      return {std::to_string(ranks.front()) + ".." + std::to_string(ranks.back()), true};
    std::string text;
    for (const std::size_t i : first_and_last(groups.size(), 4)) {
      if (!text.empty()) text += separator(at);
      if (i == left_out) {
        text += "..";
        continue;
      }
      const auto [inner, joined] = level(at + 1, groups[i]);
      text += joined ? "(" + inner + ")" : inner;
    }
    return {text, true};
  }

  const tensor_holdings& h_;
};

// What the axis does, in a few words.
inline std::string axis_text(const held_axis& a, const std::vector<held_axis>& all) {
  std::string text = a.name;
  text += "=";
  text += std::to_string(a.extent);
  const auto says = [&text](std::string_view words) -> std::string& { return text += words; };
  switch (a.use.role) {
    case axis_role::sharded: {
      bool nested = false;
      for (const held_axis& other : all)
        nested = nested ||
                 (other.use.role == axis_role::sharded && other.use.dim == a.use.dim && other.use.level < a.use.level);
      says(nested ? " splits each piece of dimension " : " splits dimension ");
      text += std::to_string(a.use.dim);
      if (!a.split.empty()) {
        text += " (";
        text += a.split;
        text += ")";
      }
      break;
    }
    case axis_role::partial:
      says(" holds contributions that ");
      text += a.op;
      says(" combines");
      break;
    case axis_role::identical:
      says(" holds copies of one computation");
      break;
    case axis_role::varying:
      says(" holds unrelated values");
      break;
    case axis_role::replicated:
      says(" holds copies");
  }
  return text;
}

// `; a,b: copies`: what the signs between ranks mean.
inline std::string holders_key(const tensor_holdings& h) {
  std::string text;
  if (h.has(axis_role::replicated)) text += "; a,b: copies";
  for (const held_axis& a : h.axes)
    if (a.use.role == axis_role::partial && a.extent > 1) {
      text += "; a" + op_symbol(a.op) + "b: contributions still to be combined";
      break;
    }
  if (h.has(axis_role::identical)) text += "; a=b: copies of one computation";
  if (h.has(axis_role::varying)) text += "; a|b: unrelated values";
  return text;
}

// Which blocks of a dimension are shown; `left_out` for those that are not.
inline std::vector<std::size_t> shown_blocks(const tensor_holdings& h, std::size_t dim, std::size_t most) {
  auto out = first_and_last(h.blocks[dim].size(), most);
  if (h.more_blocks[dim]) {
    if (out.size() >= 2 && out[out.size() - 2] == left_out) out.pop_back();
    if (out.empty() || out.back() != left_out) out.push_back(left_out);
  }
  return out;
}
inline std::string block_text(const tensor_holdings& h, std::size_t dim, std::size_t block) {
  return block == left_out ? ".." : range_text(h.blocks[dim][block]);
}

class holdings_text {
 public:
  explicit holdings_text(const tensor_holdings& h) : h_(h), holders_(h) {
    line(h.layout + ", tensor " + extents_text(h.extents));
    for (const held_axis& a : h.axes) line("  " + axis_text(a, h.axes));
    if (h.extents.size() > 2)
      slices();
    else
      grid({});
    line("numbers are ranks" + holders_key(h));
    parts();
  }
  std::string text() && { return std::move(out_); }

 private:
  void line(const std::string& text) {
    out_ += text;
    while (!out_.empty() && out_.back() == ' ') out_.pop_back();
    out_ += '\n';
  }
  static std::string padded(std::string text, std::size_t width) {
    text.resize((std::max)(width, text.size()), ' ');
    return text;
  }

  // A grid under each block of dimension 0, or under each pair of blocks of dimensions 0 and 1.
  void slices() {
    const bool pairs = h_.extents.size() == 4;
    for (const std::size_t i : shown_blocks(h_, 0, pairs ? most_slices_of_two : most_slices_written)) {
      const std::string first = "dimension 0: " + block_text(h_, 0, i);
      if (i == left_out || !pairs) line(first);
      if (i == left_out) continue;
      if (!pairs) grid({i});
      for (const std::size_t j : pairs ? shown_blocks(h_, 1, most_slices_of_two) : std::vector<std::size_t>{}) {
        line(first + ", dimension 1: " + block_text(h_, 1, j));
        if (j != left_out) grid({i, j});
      }
    }
    if (h_.blocks[0].empty() || (pairs && h_.blocks[1].empty())) line("no elements");
  }

  // The last two dimensions (or the only one, as columns) under fixed blocks of those before.
  void grid(std::vector<std::size_t> before) {
    const std::size_t columns_dim = h_.extents.size() - 1;
    const bool has_rows = h_.extents.size() > 1;
    const auto columns = shown_blocks(h_, columns_dim, most_blocks_written);
    const auto rows = has_rows ? shown_blocks(h_, columns_dim - 1, most_blocks_written) : std::vector<std::size_t>{0};
    if (columns.empty() || rows.empty()) {
      line("no elements");
      return;
    }
    std::vector<std::vector<std::string>> cells;
    std::vector<std::size_t> widths;
    std::size_t margin = 0;
    for (const std::size_t c : columns) widths.push_back(block_text(h_, columns_dim, c).size());
    for (const std::size_t r : rows) {
      if (has_rows) margin = (std::max)(margin, block_text(h_, columns_dim - 1, r).size());
      cells.emplace_back();
      for (std::size_t c = 0; c < columns.size(); ++c) {
        std::string cell = "..";
        if (r != left_out && columns[c] != left_out) {
          std::vector<std::size_t> block = before;
          if (has_rows) block.push_back(r);
          block.push_back(columns[c]);
          cell = holders_(h_.holders(block));
        }
        widths[c] = (std::max)(widths[c], cell.size());
        cells.back().push_back(std::move(cell));
      }
    }
    std::string head(margin + 3, ' ');
    std::string rule = std::string(margin + 3, ' ') + "+";
    for (std::size_t c = 0; c < columns.size(); ++c) {
      head += "  " + padded(block_text(h_, columns_dim, columns[c]), widths[c] + 1);
      rule += std::string(widths[c] + 2, '-') + "+";
    }
    line(head);
    line(rule);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::string text = "  ";
      text += padded(has_rows ? block_text(h_, columns_dim - 1, rows[r]) : "", margin);
      text += " |";
      for (std::size_t c = 0; c < columns.size(); ++c) text += " " + padded(cells[r][c], widths[c]) + " |";
      line(text);
    }
    line(rule);
  }

  void parts() {
    for (const std::size_t r : first_and_last(h_.ranks.size(), most_ranks_written)) {
      if (r == left_out) {
        line("  ..");
        continue;
      }
      const held_part& p = h_.ranks[r];
      std::string text = "  rank " + std::to_string(r);
      for (std::size_t a = 0; a < h_.axes.size(); ++a) {
        text += a == 0 ? " (" : ", ";
        text += h_.axes[a].name + " " + std::to_string(p.coordinates[a]);
      }
      text += h_.axes.empty() ? ": " : "): ";
      std::vector<std::int64_t> sizes, stored;
      for (const held_dimension& d : p.dims) {
        sizes.push_back(d.size);
        stored.push_back(d.stored);
      }
      if (p.empty()) {
        text += "nothing, " + extents_text(sizes);
      } else {
        text += "[";
        for (std::size_t d = 0; d < p.dims.size(); ++d) {
          if (d > 0) text += "; ";
          text += ranges_text(p.dims[d]);
        }
        text += "], " + extents_text(sizes);
      }
      if (sizes != stored) text += ", padded to " + extents_text(stored);
      line(text);
    }
  }

  const tensor_holdings& h_;
  holders_writer holders_;
  std::string out_;
};

// Whether every part of an extent of n has elements after these cuts (`all`), or at least all cuts are possible.
inline bool cuts_show(std::int64_t n, const std::vector<std::pair<const split_functions*, int>>& cuts, std::size_t at,
                      bool all) {
  if (at == cuts.size()) return n > 0 || !all;
  const auto [how, parts] = cuts[at];
  if (!how->fits(n, parts)) return false;
  for (int part = 0; part < parts; ++part)
    if (!cuts_show(how->size(n, parts, part), cuts, at + 1, all)) return false;
  return true;
}
inline std::int64_t illustrative_extent(const std::vector<std::pair<const split_functions*, int>>& cuts) {
  std::int64_t parts = 1;
  for (const auto& c : cuts) parts *= c.second;
  if (parts == 1) return 4;
  bool contiguous = true;
  for (const auto& c : cuts) contiguous = contiguous && c.first->contiguous;
  for (std::int64_t n = 2 * parts; n <= 4096 * parts; n *= 2)
    if (cuts_show(n, cuts, 0, true)) return contiguous || !cuts_show(2 * n, cuts, 0, true) ? n : 2 * n;
  for (const bool all : {true, false})  // sizes that are given, and must add up
    for (std::int64_t n = 1; n <= 4096; ++n)
      if (cuts_show(n, cuts, 0, all)) return n;
  return 2 * parts;
}

// A small shape that shows the layout: every rank holds something, where that is possible.
template <class Layout>
auto illustrative_shape(const Layout& layout) {
  constexpr std::size_t rank = Layout::min_tensor_rank < 1 ? 1 : static_cast<std::size_t>(Layout::min_tensor_rank);
  const auto mesh = layout.mesh().extents();
  std::array<std::int64_t, rank> extents{};
  for (std::size_t d = 0; d < rank; ++d) {
    std::vector<std::pair<const split_functions*, int>> cuts;
    for (const cut& c : Layout::cuts)
      if (c.dim == static_cast<int>(d)) cuts.emplace_back(c.how, mesh[c.axis]);
    extents[d] = illustrative_extent(cuts);
  }
  return make_shape(extents);
}

}  // namespace detail

/// Text that shows who holds what of a tensor of shape `s`: a grid of its blocks with the ranks that hold them (of three
/// dimensions one per block of dimension 0, of four one per pair of blocks of the first two), then what each rank holds. Ranges are written `first..last`, both included.
/// `0,1` are copies, `0=1` copies of one computation, `0+1` contributions still to be combined, `0|1` unrelated values. Long lists are shortened with `..`.
/// Shapes: 1 to 4 dimensions. Units: elements.
/// Errors: `layout_error` for another number of dimensions, or one that lacks a dimension the layout splits.
template <layout_like L, std::int64_t... E>
std::string describe(const L& layout, const shape<E...>& s) {
  const detail::tensor_holdings h = detail::holdings_of(layout, s);
  return detail::holdings_text(h).text();
}

/// The same for a small shape with as many dimensions as the layout needs.
template <layout_like L>
std::string describe(const L& layout) {
  return describe(layout, detail::illustrative_shape(layout));
}

}  // namespace heddle::inline v0

// heddle/layout/impl/describe.hpp: bodies of heddle/layout/describe.hpp.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/layout/describe.hpp>
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

HEDDLE_INLINE std::vector<std::size_t> first_and_last(std::size_t count, std::size_t most) {
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

HEDDLE_INLINE std::string range_text(const index_range& r) {
  std::string text = std::to_string(r.begin);
  if (r.end - r.begin > 1) {
    text += "..";
    text += std::to_string(r.end - 1);
  }
  return text;
}

HEDDLE_INLINE std::string ranges_text(const held_dimension& d) {
  if (d.ranges.empty()) return "none";
  std::string text;
  for (const std::size_t i : first_and_last(d.ranges.size(), most_ranges_written)) {
    if (!text.empty()) text += ",";
    text += i == left_out ? ".." : range_text(d.ranges[i]);
    if (i == left_out && !d.complete) break;
  }
  return text;
}

HEDDLE_INLINE std::string extents_text(const std::vector<std::int64_t>& extents) {
  return joined_numbers(extents, " x ");
}

HEDDLE_INLINE std::string op_symbol(const std::string& op) {
  if (op == "plus") return "+";
  if (op == "multiplies") return "*";
  if (op == "maximum") return " max ";
  if (op == "minimum") return " min ";
  return " " + op + " ";
}

HEDDLE_INLINE std::string holders_writer::separator(std::size_t at) const {
  if (order[at] == axis_role::varying) return "|";
  if (order[at] == axis_role::replicated || order[at] == axis_role::sharded) return ",";
  if (order[at] == axis_role::identical) return "=";
  for (const held_axis& a : h_.axes)
    if (a.use.role == axis_role::partial) return op_symbol(a.op);
  return "+";
}

HEDDLE_INLINE std::pair<std::string, bool> holders_writer::level(std::size_t at, const std::vector<int>& ranks) const {
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

HEDDLE_INLINE std::string axis_text(const held_axis& a, const std::vector<held_axis>& all) {
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
      if (a.use.halo != 0) {
        text += ", with a halo of ";
        text += std::to_string(a.use.halo);
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

HEDDLE_INLINE std::string holders_key(const tensor_holdings& h) {
  std::string text;
  bool copies = h.has(axis_role::replicated);
  for (const held_axis& a : h.axes) copies = copies || (a.use.halo != 0 && a.extent > 1);
  if (copies) text += "; a,b: copies";
  for (const held_axis& a : h.axes)
    if (a.use.role == axis_role::partial && a.extent > 1) {
      text += "; a" + op_symbol(a.op) + "b: contributions still to be combined";
      break;
    }
  if (h.has(axis_role::identical)) text += "; a=b: copies of one computation";
  if (h.has(axis_role::varying)) text += "; a|b: unrelated values";
  return text;
}

HEDDLE_INLINE std::vector<std::size_t> shown_blocks(const tensor_holdings& h, std::size_t dim, std::size_t most) {
  auto out = first_and_last(h.blocks[dim].size(), most);
  if (h.more_blocks[dim]) {
    if (out.size() >= 2 && out[out.size() - 2] == left_out) out.pop_back();
    if (out.empty() || out.back() != left_out) out.push_back(left_out);
  }
  return out;
}

HEDDLE_INLINE holdings_text::holdings_text(const tensor_holdings& h) : h_(h), holders_(h) {
  line(h.layout + ", tensor " + extents_text(h.extents));
  for (const held_axis& a : h.axes) line("  " + axis_text(a, h.axes));
  if (h.extents.size() > 2)
    slices();
  else
    grid({});
  line("numbers are ranks" + holders_key(h));
  parts();
}

HEDDLE_INLINE void holdings_text::slices() {
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

HEDDLE_INLINE void holdings_text::grid(std::vector<std::size_t> before) {
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

HEDDLE_INLINE void holdings_text::parts() {
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

HEDDLE_INLINE bool cuts_show(std::int64_t n, const std::vector<std::pair<const split_functions*, int>>& cuts,
                             std::size_t at, bool all) {
  if (at == cuts.size()) return n > 0 || !all;
  const auto [how, parts] = cuts[at];
  if (!how->fits(n, parts)) return false;
  for (int part = 0; part < parts; ++part)
    if (!cuts_show(how->size(n, parts, part), cuts, at + 1, all)) return false;
  return true;
}

HEDDLE_INLINE std::int64_t illustrative_extent(const std::vector<std::pair<const split_functions*, int>>& cuts) {
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

}  // namespace detail
}  // namespace heddle::inline v0

// heddle/layout/tensor_holdings.hpp: each rank's parts of a tensor as plain data.
#pragma once

#include <heddle/layout/layout.hpp>
#include <heddle/layout/part.hpp>

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

// Elements `begin` to `end` (not included) of one dimension.
struct index_range {
  std::int64_t begin = 0, end = 0;
};

// What one rank holds along one dimension: ranges of the whole in ascending order, and the memory they lie in.
struct held_dimension {
  std::vector<index_range> ranges = {};
  std::int64_t size = 0;    // elements
  std::int64_t stored = 0;  // elements of memory; more than `size` if the part is padded
  bool complete = true;     // false if there are more ranges than these
  std::int64_t known = 0;   // of the elements before this one, all that are held are in `ranges`
};

struct held_part {
  std::vector<held_dimension> dims = {};
  std::vector<int> coordinates = {};  // along each axis

  bool empty() const {
    return std::any_of(dims.begin(), dims.end(), [](const held_dimension& d) { return d.size == 0; });
  }
};

// One axis of the mesh, and what it does to the tensor.
struct held_axis {
  std::string name = {};
  int extent = 1;
  axis_use use = {};
  std::string op = {};     // of a partial axis
  std::string split = {};  // policy of a sharded axis; empty if balanced
};

struct tensor_holdings {
  std::string layout = {};
  std::vector<std::int64_t> extents = {};
  std::vector<held_axis> axes = {};
  std::vector<held_part> ranks = {};
  // Each dimension cut wherever some rank's range begins or ends: what lies between two cuts has the same holders.
  std::vector<std::vector<index_range>> blocks = {};
  std::vector<bool> more_blocks = {};  // the blocks of this dimension stop before its end

  bool holds(int rank, const std::vector<std::size_t>& block) const {
    const held_part& part = ranks[static_cast<std::size_t>(rank)];
    for (std::size_t d = 0; d < block.size(); ++d) {
      const index_range& b = blocks[d][block[d]];
      const auto& ranges = part.dims[d].ranges;
      const auto at = std::upper_bound(ranges.begin(), ranges.end(), b.begin,
                                       [](std::int64_t i, const index_range& r) { return i < r.end; });
      if (at == ranges.end() || at->begin > b.begin) return false;
    }
    return true;
  }
  std::vector<int> holders(const std::vector<std::size_t>& block) const {
    std::vector<int> out;
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r)
      if (holds(r, block)) out.push_back(r);
    return out;
  }
  bool has(axis_role role) const {
    return std::any_of(axes.begin(), axes.end(),
                       [role](const held_axis& a) { return a.use.role == role && a.extent > 1; });
  }
};

// More ranges than this are not looked at: nobody reads them.
inline constexpr std::size_t most_ranges = 256;

inline void cut_into_blocks(tensor_holdings& h) {
  for (std::size_t d = 0; d < h.extents.size(); ++d) {
    std::int64_t end = h.extents[d];
    for (const held_part& p : h.ranks)
      if (!p.dims[d].complete) end = (std::min)(end, p.dims[d].known);
    std::vector<std::int64_t> cuts{0, end};
    for (const held_part& p : h.ranks)
      for (const index_range& r : p.dims[d].ranges) {
        if (r.begin < end) cuts.push_back(r.begin);
        if (r.end < end) cuts.push_back(r.end);
      }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<index_range> blocks;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) blocks.push_back({cuts[i], cuts[i + 1]});
    h.blocks.push_back(std::move(blocks));
    h.more_blocks.push_back(end < h.extents[d]);
  }
}

[[noreturn]] inline void throw_not_drawable(std::size_t rank) {
  throw layout_error("heddle: describe draws tensors of 1 to 4 dimensions, got " + std::to_string(rank));
}
[[noreturn]] inline void throw_too_few_dimensions(std::size_t rank, int needed) {
  throw layout_error("heddle: describe got a tensor of " + std::to_string(rank) +
                     " dimensions for a layout that splits dimension " + std::to_string(needed - 1));
}
inline void require_drawable(std::size_t rank, int needed) {
  if (rank < 1 || rank > 4) throw_not_drawable(rank);
  if (static_cast<int>(rank) < needed) throw_too_few_dimensions(rank, needed);
}

inline void add_range(held_dimension& d, std::int64_t begin, std::int64_t end) {
  if (!d.ranges.empty() && d.ranges.back().end == begin)
    d.ranges.back().end = end;
  else
    d.ranges.push_back({begin, end});
}

// Whether memory holds an element before `end` from `local` on; looks at as many places as somebody waits for.
template <std::size_t Axes>
bool comes_back(const dimension_part<Axes>& part, std::int64_t local, std::int64_t end) {
  const std::int64_t step = 1 + (part.size() - local) / 4096;
  for (; local < part.size(); local += step)
    if (part.to_global(local) < end) return true;
  return false;
}

// The first ranges found by asking for every element of the whole, for a policy whose memory is in another order.
template <std::size_t Axes>
void walk_whole(const dimension_part<Axes>& part, std::int64_t extent, held_dimension& d) {
  d.ranges.clear();
  for (int step = 0; step < 65536 && d.known < extent; ++step) {
    if (!part.holds(d.known)) {
      ++d.known;
      continue;
    }
    const bool joins = !d.ranges.empty() && d.ranges.back().end == d.known;
    if (!joins && d.ranges.size() == most_ranges) return;
    const std::int64_t end = d.known + part.run(part.to_local(d.known));
    add_range(d, d.known, end);
    d.known = end;
  }
}

// The ranges of one dimension, ascending; neighbours become one.
template <std::size_t Axes>
held_dimension held_dimension_of(const dimension_part<Axes>& part, std::int64_t extent) {
  held_dimension out{{}, part.size(), part.stored(), true, 0};
  bool ascending = true;
  for (std::int64_t local = 0; local < part.size();) {
    const std::int64_t begin = part.to_global(local), run = part.run(local);
    const bool joins = !out.ranges.empty() && out.ranges.back().end == begin;
    ascending = ascending && (out.ranges.empty() || out.ranges.back().end <= begin);
    if (!joins && out.ranges.size() == most_ranges) {
      if (ascending && !comes_back(part, local, out.ranges.back().end))
        out.known = out.ranges.back().end;
      else
        walk_whole(part, extent, out);
      out.complete = out.known == extent;
      return out;
    }
    add_range(out, begin, begin + run);
    local += run;
  }
  out.known = extent;
  std::sort(out.ranges.begin(), out.ranges.end(),
            [](const index_range& a, const index_range& b) { return a.begin < b.begin; });
  return out;
}

template <std::size_t Axes>
std::vector<held_axis> held_axes(const std::string_view* names, const std::string_view* ops,
                                 const axis_table<Axes>& table, const std::array<int, Axes>& extents) {
  std::vector<held_axis> out;
  for (std::size_t a = 0; a < Axes; ++a) {
    held_axis axis{std::string(names[a]), extents[a], table.use[a], {}, {}};
    if (axis.use.role == axis_role::partial) axis.op = ops[static_cast<std::size_t>(axis.use.op)];
    if (axis.use.role == axis_role::sharded && axis.use.how->name != "balanced") axis.split = axis.use.how->name;
    out.push_back(std::move(axis));
  }
  return out;
}

// What the ranks hold of a tensor under a table, as it is between the steps of a plan. `layout` is the title.
template <std::size_t Rank, std::size_t Axes>
tensor_holdings holdings_in(std::string layout, const std::string_view* names, const std::string_view* ops,
                            const axis_table<Axes>& table, const mesh_numbers<Axes>& mesh,
                            const std::array<std::int64_t, Rank>& extents) {
  tensor_holdings h;
  h.layout = std::move(layout);
  h.extents.assign(extents.begin(), extents.end());
  h.axes = held_axes(names, ops, table, mesh.extents);
  const auto cuts = cuts_of(table);
  for (int rank = 0; rank < mesh.size; ++rank) {
    const auto part = part_of(cuts, mesh, extents, rank);
    held_part& held = h.ranks.emplace_back();
    for (std::size_t d = 0; d < Rank; ++d) held.dims.push_back(held_dimension_of(part.dims[d], extents[d]));
    for (std::size_t a = 0; a < Axes; ++a) held.coordinates.push_back(mesh.coordinate(a, rank));
  }
  cut_into_blocks(h);
  return h;
}

// Errors: `layout_error` unless the tensor has 1 to 4 dimensions, and those that the layout splits.
template <class Layout, std::int64_t... E>
tensor_holdings holdings_of(const Layout& layout, const shape<E...>& s) {
  require_drawable(sizeof...(E), Layout::min_tensor_rank);
  constexpr auto names = short_names(typename Layout::mesh_type::tags{});
  constexpr auto ops = short_names(typename Layout::ops{});
  return holdings_in(to_string(layout), names.data(), ops.data(), Layout::table, numbers_of(layout.mesh().extents()),
                     s.extents());
}

}  // namespace detail
}  // namespace heddle::inline v0

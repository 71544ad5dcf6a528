// heddle/layout/describe.hpp: draws the parts of a tensor that each rank holds, in text.
#pragma once

#include <heddle/core/config.hpp>
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
HEDDLE_INLINE std::vector<std::size_t> first_and_last(std::size_t count, std::size_t most);

// `0..4`, or `4` for one element.
HEDDLE_INLINE std::string range_text(const index_range& r);

HEDDLE_INLINE std::string ranges_text(const held_dimension& d);

HEDDLE_INLINE std::string extents_text(const std::vector<std::int64_t>& extents);

HEDDLE_INLINE std::string op_symbol(const std::string& op);

// The ranks that hold one block, outermost what differs most: unrelated values `|`, contributions (`+` or the operator's
// name), copies `,` and copies of one computation `=`. `(0,1)+(2,3)`: a contribution that 0 and 1 hold, and another.
class holders_writer {
 public:
  explicit holders_writer(const tensor_holdings& h) : h_(h) {}

  std::string operator()(const std::vector<int>& ranks) const { return ranks.empty() ? "-" : level(0, ranks).first; }

 private:
  static constexpr axis_role order[]{axis_role::varying, axis_role::partial, axis_role::sharded, axis_role::replicated,
                                     axis_role::identical};
  static constexpr std::size_t levels = sizeof(order) / sizeof(order[0]);

  std::string separator(std::size_t at) const;
  bool same(std::size_t at, int a, int b) const {
    for (std::size_t i = 0; i < h_.axes.size(); ++i)
      if (h_.axes[i].use.role == order[at] && coordinate(a, i) != coordinate(b, i)) return false;
    return true;
  }
  int coordinate(int rank, std::size_t axis) const {
    return h_.ranks[static_cast<std::size_t>(rank)].coordinates[axis];
  }

  // The text, and whether it joins several.
  std::pair<std::string, bool> level(std::size_t at, const std::vector<int>& ranks) const;

  const tensor_holdings& h_;
};

// What the axis does, in a few words.
HEDDLE_INLINE std::string axis_text(const held_axis& a, const std::vector<held_axis>& all);

// `; a,b: copies`: what the signs between ranks mean.
HEDDLE_INLINE std::string holders_key(const tensor_holdings& h);

// Which blocks of a dimension are shown; `left_out` for those that are not.
HEDDLE_INLINE std::vector<std::size_t> shown_blocks(const tensor_holdings& h, std::size_t dim, std::size_t most);
inline std::string block_text(const tensor_holdings& h, std::size_t dim, std::size_t block) {
  return block == left_out ? ".." : range_text(h.blocks[dim][block]);
}

class holdings_text {
 public:
  explicit holdings_text(const tensor_holdings& h);
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
  void slices();

  // The last two dimensions (or the only one, as columns) under fixed blocks of those before.
  void grid(std::vector<std::size_t> before);

  void parts();

  const tensor_holdings& h_;
  holders_writer holders_;
  std::string out_;
};

// Whether every part of an extent of n has elements after these cuts (`all`), or at least all cuts are possible.
HEDDLE_INLINE bool cuts_show(std::int64_t n, const std::vector<std::pair<const split_functions*, int>>& cuts,
                             std::size_t at, bool all);
HEDDLE_INLINE std::int64_t illustrative_extent(const std::vector<std::pair<const split_functions*, int>>& cuts);

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

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/layout/impl/describe.hpp>
#endif

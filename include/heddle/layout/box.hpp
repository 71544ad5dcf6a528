// heddle/layout/box.hpp: the arithmetic of split dimensions on plain numbers; static and dynamic layouts both call it.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/layout/placement.hpp>
#include <heddle/mesh/mesh.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0 {
namespace detail {

// One cut of one dimension by one axis. A layout's cuts come sorted by dimension, then major to minor.
struct cut {
  int dim = 0;
  std::size_t axis = 0;
};
template <std::size_t Axes>
struct cut_list {
  cut cuts[Axes == 0 ? 1 : Axes]{};
  std::size_t count = 0;

  constexpr const cut* begin() const noexcept { return cuts; }
  constexpr const cut* end() const noexcept { return cuts + count; }
};

template <std::size_t Axes>
constexpr cut_list<Axes> cuts_of(const axis_table<Axes>& table) {
  cut_list<Axes> out;
  for (std::size_t a = 0; a < Axes; ++a) {
    const axis_use& u = table.use[a];
    if (u.role != axis_role::sharded) continue;
    std::size_t at = out.count++;
    for (; at > 0; --at) {
      const cut& before = out.cuts[at - 1];
      if (before.dim < u.dim || (before.dim == u.dim && table.use[before.axis].level < u.level)) break;
      out.cuts[at] = before;
    }
    out.cuts[at] = {u.dim, a};
  }
  return out;
}

// The part of a tensor that one rank holds: a box at `offset` with `extent` elements per dimension.
template <std::size_t Rank>
struct tensor_box {
  std::array<std::int64_t, Rank> offset{};
  std::array<std::int64_t, Rank> extent{};

  constexpr std::int64_t size() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t e : extent) n *= e;
    return n;
  }
};

template <std::size_t Rank, std::size_t Axes, std::size_t Cuts>
constexpr tensor_box<Rank> local_box(const cut_list<Cuts>& cuts, const std::array<int, Axes>& mesh,
                                     const std::array<std::int64_t, Rank>& extents, int rank) {
  tensor_box<Rank> box;
  box.extent = extents;
  for (const cut& c : cuts) {
    const auto dim = static_cast<std::size_t>(c.dim);
    const balanced_split split{box.extent[dim], mesh[c.axis]};
    const int part = mesh_coordinate(mesh, c.axis, rank);
    box.offset[dim] += split.offset(part);
    box.extent[dim] = split.size(part);
  }
  return box;
}

// The lowest rank that holds the element: coordinate 0 along every axis that does not split.
template <std::size_t Rank, std::size_t Axes, std::size_t Cuts>
constexpr int owner_of(const cut_list<Cuts>& cuts, const std::array<int, Axes>& mesh, std::array<std::int64_t, Rank> extents,
                       std::array<std::int64_t, Rank> index) {
  int rank = 0;
  for (const cut& c : cuts) {
    const auto dim = static_cast<std::size_t>(c.dim);
    const balanced_split split{extents[dim], mesh[c.axis]};
    const std::int64_t part = split.owner(index[dim]);
    rank += static_cast<int>(part) * mesh_stride(mesh, c.axis);
    index[dim] -= split.offset(part);
    extents[dim] = split.size(part);
  }
  return rank;
}

template <std::size_t Axes>
constexpr bool is_first_copy(const axis_table<Axes>& table, const std::array<int, Axes>& mesh, int rank) {
  for (std::size_t a = 0; a < Axes; ++a)
    if (table.use[a].role == axis_role::replicated && mesh_coordinate(mesh, a, rank) != 0) return false;
  return true;
}

template <std::size_t Rank>
constexpr bool inside(const tensor_box<Rank>& box, const std::array<std::int64_t, Rank>& index) {
  for (std::size_t d = 0; d < Rank; ++d)
    if (index[d] < box.offset[d] || index[d] - box.offset[d] >= box.extent[d]) return false;
  return true;
}

template <std::size_t Rank>
std::string index_text(const std::array<std::int64_t, Rank>& index) {
  std::string text = "[";
  for (std::size_t d = 0; d < Rank; ++d) text += (d ? ", " : "") + std::to_string(index[d]);
  return text + "]";
}

template <std::size_t Rank>
constexpr void check_index(const std::array<std::int64_t, Rank>& extents, const std::array<std::int64_t, Rank>& index,
                           const char* what) {
  for (std::size_t d = 0; d < Rank; ++d)
    if (index[d] < 0 || index[d] >= extents[d])
      throw layout_error("heddle: index " + index_text(index) + " is outside " + what + " of extents " + index_text(extents));
}

template <std::size_t Axes>
constexpr void check_rank(const std::array<int, Axes>& mesh, int rank) {
  if (rank < 0 || rank >= mesh_size(mesh))
    throw layout_error("heddle: rank " + std::to_string(rank) + " is outside the layout's mesh of " +
                       std::to_string(mesh_size(mesh)) + " ranks");
}

}  // namespace detail
}  // namespace heddle::inline v0

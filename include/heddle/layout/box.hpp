// heddle/layout/box.hpp: arithmetic of split dimensions, for static and dynamic layouts.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>
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
  const split_functions* how = &functions_of<split::balanced>;
  std::int64_t halo = 0;  // after this cut, the last one of its dimension, the part grows by so much on either side
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
    std::size_t before = 0;  // how many cuts come before this one
    for (const axis_use& other : table.use)
      if (other.role == axis_role::sharded && (other.dim < u.dim || (other.dim == u.dim && other.level < u.level)))
        ++before;
    out.cuts[before] = {u.dim, a, u.how, u.halo};
    ++out.count;
  }
  for (std::size_t i = 0; i + 1 < out.count; ++i)
    if (out.cuts[i].dim == out.cuts[i + 1].dim) out.cuts[i].halo = 0;
  return out;
}

[[noreturn]] inline void throw_unfit(const split_functions& how, int dim, std::int64_t n, std::int64_t p) {
  throw layout_error(
      text_of({"heddle: split policy ", how.name, " cannot cut the ", n, " elements of dimension ", dim, " into ", p,
               " parts; its sizes must be as many as the ranks along the axis and add up to the extent"}));
}
constexpr void require_fit(const split_functions& how, int dim, std::int64_t n, std::int64_t p) {
  if (!how.fits(n, p)) throw_unfit(how, dim, n, p);
}

// The part of a tensor that one rank holds: a box at `offset` with `extent` elements per dimension. Where a dimension is
// cut into parts that are not intervals, `extent` counts elements and `offset` means nothing (see part.hpp).
template <std::size_t Rank>
struct tensor_box {
  std::array<std::int64_t, Rank> offset{};
  std::array<std::int64_t, Rank> extent{};

  constexpr std::int64_t size() const noexcept { return countable_product_of(extent); }
};

// A mesh as plain numbers: of a static mesh they are constants.
template <std::size_t Axes>
struct mesh_numbers {
  std::array<int, Axes> extents{};
  std::array<int, Axes> strides{};
  int size = 1;

  constexpr int coordinate(std::size_t axis, int rank) const noexcept { return rank / strides[axis] % extents[axis]; }
};
template <std::size_t Axes>
constexpr mesh_numbers<Axes> numbers_of(const std::array<int, Axes>& extents) noexcept {
  mesh_numbers<Axes> m{extents, {}, 1};
  for (std::size_t a = Axes; a-- > 0;) {
    m.strides[a] = m.size;
    m.size *= extents[a];
  }
  return m;
}

// Inlined by order, as `owner`: what is known of the mesh and the shape must reach the division.
// The formula: one cut keeps, of what is left of its dimension, the part that the rank's coordinate along the axis names.
template <std::size_t Rank, std::size_t Axes>
[[gnu::always_inline]] constexpr void apply_cut(tensor_box<Rank>& box, const cut& c, const mesh_numbers<Axes>& mesh,
                                                int rank) {
  const auto dim = static_cast<std::size_t>(c.dim);
  const std::int64_t n = box.extent[dim], p = mesh.extents[c.axis];
  const int part = mesh.coordinate(c.axis, rank);
  if (c.how == &functions_of<split::balanced>) {  // by name, so that it is inlined
    box.offset[dim] += balanced_split{n, p}.offset(part);
    box.extent[dim] = balanced_split{n, p}.size(part);
    return;
  }
  require_fit(*c.how, c.dim, n, p);
  box.offset[dim] += c.how->contiguous ? c.how->to_global(n, p, part, 0) : 0;
  box.extent[dim] = c.how->size(n, p, part);
}

// Adds the halo of a dimension after its last cut. An empty block has none.
struct widened_interval {
  std::int64_t begin = 0, end = 0;

  constexpr widened_interval(std::int64_t from, std::int64_t size, std::int64_t width, std::int64_t whole) noexcept
      : begin(from), end(from + size) {
    if (size == 0) return;
    begin = width < begin ? begin - width : 0;
    end = width < whole - end ? end + width : whole;
  }
};
template <std::size_t Rank>
constexpr void apply_halo(tensor_box<Rank>& box, const cut& c, const std::array<std::int64_t, Rank>& extents) {
  const auto dim = static_cast<std::size_t>(c.dim);
  const widened_interval held(box.offset[dim], box.extent[dim], c.halo, extents[dim]);
  box.offset[dim] = held.begin;
  box.extent[dim] = held.end - held.begin;
}

template <std::size_t Rank, std::size_t Axes, std::size_t Cuts>
constexpr tensor_box<Rank> local_box(const cut_list<Cuts>& cuts, const mesh_numbers<Axes>& mesh,
                                     const std::array<std::int64_t, Rank>& extents, int rank) {
  tensor_box<Rank> box{{}, extents};
  for (const cut& c : cuts) apply_cut(box, c, mesh, rank);
  for (const cut& c : cuts)
    if (c.halo != 0) apply_halo(box, c, extents);
  return box;
}

// Adds to `rank` the coordinate of the part that holds the element, and goes on inside that part.
template <std::size_t Rank, std::size_t Axes>
[[gnu::always_inline]] constexpr void find_part(int& rank, std::array<std::int64_t, Rank>& index,
                                                std::array<std::int64_t, Rank>& extents, const cut& c,
                                                const mesh_numbers<Axes>& mesh) {
  const auto dim = static_cast<std::size_t>(c.dim);
  const std::int64_t n = extents[dim], p = mesh.extents[c.axis];
  std::int64_t part = 0;
  if (c.how == &functions_of<split::balanced>) {
    const balanced_split split{n, p};
    part = split.owner(index[dim]);
    index[dim] -= split.offset(part);
    extents[dim] = split.size(part);
  } else {
    require_fit(*c.how, c.dim, n, p);
    part = c.how->owner(n, p, index[dim]);
    index[dim] = c.how->to_local(n, p, index[dim]);
    extents[dim] = c.how->size(n, p, part);
  }
  rank += static_cast<int>(part) * mesh.strides[c.axis];
}

template <std::size_t Axes>
constexpr bool is_first_copy(const axis_table<Axes>& table, const mesh_numbers<Axes>& mesh, int rank) noexcept {
  for (std::size_t a = 0; a < Axes; ++a)
    if ((table.use[a].role == axis_role::replicated || table.use[a].role == axis_role::identical) &&
        mesh.coordinate(a, rank) != 0)
      return false;
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

// Checks stay small enough to be inlined, so that they vanish where the numbers are known.
template <std::size_t Rank>
[[noreturn]] void throw_index(const std::array<std::int64_t, Rank>& extents,
                              const std::array<std::int64_t, Rank>& index, const char* what) {
  throw layout_error("heddle: index " + index_text(index) + " is outside " + what + " of extents " +
                     index_text(extents));
}
template <std::size_t Rank>
constexpr void require_index(const std::array<std::int64_t, Rank>& extents, const std::array<std::int64_t, Rank>& index,
                             const char* what) {
  for (std::size_t d = 0; d < Rank; ++d)
    if (index[d] < 0 || index[d] >= extents[d]) throw_index(extents, index, what);
}

[[noreturn]] inline void throw_rank(int size, int rank) {
  throw layout_error("heddle: rank " + std::to_string(rank) + " is outside the layout's mesh of " +
                     std::to_string(size) + " ranks");
}
constexpr void require_rank(int size, int rank) {
  if (rank < 0 || rank >= size) throw_rank(size, rank);
}

}  // namespace detail
}  // namespace heddle::inline v0

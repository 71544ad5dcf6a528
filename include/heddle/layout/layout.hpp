// heddle/layout/layout.hpp: the layout of a tensor on a mesh.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/layout/box.hpp>
#include <heddle/layout/canonical.hpp>
#include <heddle/layout/part.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

struct layout_tag {};

template <int Dim, std::size_t Rank>
inline constexpr bool tensor_has_dimension = Dim < static_cast<int>(Rank);

// What a layout says, whatever the mesh's extents are.
template <class Mesh, class... Ps>
struct layout_facts : layout_tag {
  using mesh_type = Mesh;
  using placements = type_list<Ps...>;
  /// The operators of its partial axes.
  using ops = joined_lists<typename op_of_placement<Ps>::type...>;
  /// The split policies of its cuts; the first is `split::balanced`, used or not.
  using splits = joined_lists<type_list<split::balanced>, typename splits_of_placement<Ps>::type...>;
  static constexpr axis_table<Mesh::rank> table = read_placements<Mesh, ops, splits, Ps...>(false).table;
  static constexpr auto cuts = cuts_of(table);

  /// The least number of dimensions a tensor needs for this layout: one more than the highest one it splits.
  static constexpr int min_tensor_rank = cuts.count == 0 ? 0 : cuts.cuts[cuts.count - 1].dim + 1;
  /// Whether some axis holds partial values.
  static constexpr bool has_partial = (false || ... || is_partial<Ps>);
  /// Whether the values along some axis have no meaning as one tensor.
  static constexpr bool has_varying = (false || ... || is_varying<Ps>);
  /// Whether what a rank holds is one box of the tensor. Some policies deal out several intervals of a dimension.
  static constexpr bool is_contiguous = [] {
    for (const cut& c : cuts)
      if (!c.how->contiguous) return false;
    return true;
  }();
  /// Whether ranks hold copies of elements around their blocks.
  static constexpr bool has_halo = [] {
    for (const cut& c : cuts)
      if (c.halo != 0) return true;
    return false;
  }();
  /// Whether parts can take more memory than they have elements.
  static constexpr bool is_padded = [] {
    for (const cut& c : cuts)
      if (c.how->pads) return true;
    return false;
  }();

  // Public, as clang 17 and 18 ask for in an alias with a requirement.
  template <class Axis>
  static constexpr axis_use use_of = [] {
    if constexpr (Mesh::template has<Axis>)
      return table.use[Mesh::template position<Axis>];
    else
      return axis_use{};
  }();

  /// Whether the axis splits a dimension. An axis the mesh does not have splits nothing.
  template <class Axis>
  static constexpr bool is_sharded_on = use_of<Axis>.role == axis_role::sharded;
  /// Whether the ranks along the axis hold contributions that are still to be combined.
  template <class Axis>
  static constexpr bool is_partial_on = use_of<Axis>.role == axis_role::partial;
  /// Whether the ranks along the axis hold the same values, each for its own use.
  template <class Axis>
  static constexpr bool is_replicated_on = use_of<Axis>.role == axis_role::replicated;
  /// Whether they hold the same values because they do the same computation.
  template <class Axis>
  static constexpr bool is_identical_on = use_of<Axis>.role == axis_role::identical;
  /// Whether they hold values that do not make one tensor.
  template <class Axis>
  static constexpr bool is_varying_on = use_of<Axis>.role == axis_role::varying;
  /// The dimension the axis splits, or -1.
  template <class Axis>
  static constexpr int dim_of = use_of<Axis>.dim;
  /// The operator that combines the contributions along the axis, which must be partial.
  template <class Axis>
    requires is_partial_on<Axis>
  using op_of = typename list_at<static_cast<std::size_t>(use_of<Axis>.op), ops>::type;

  /// The policy by which the axis cuts its dimension; the axis must split one.
  template <class Axis>
    requires is_sharded_on<Axis>
  using split_of = typename list_at<static_cast<std::size_t>(use_of<Axis>.split), splits>::type;

 protected:
  static constexpr bool only_balanced = [] {
    for (const cut& c : cuts)
      if (c.how != &functions_of<split::balanced> || c.halo != 0) return false;
    return true;
  }();
  template <std::int64_t... E>
  static constexpr bool fits() {
    static_assert(
        tensor_has_dimension<min_tensor_rank - 1, sizeof...(E)>,
        "heddle: a layout splits a dimension that the tensor does not have; dimensions count from 0, so lower the "
        "number in shard<dim, ...> or give the tensor more dimensions");
    return min_tensor_rank <= static_cast<int>(sizeof...(E));
  }
  using numbers = mesh_numbers<Mesh::rank>;
  using each_cut = std::make_index_sequence<cuts.count>;

  // Cuts are unrolled: dimensions and axes are known even where extents are not.
  template <std::size_t Rank, std::size_t... Cs>
  static constexpr void cut_all([[maybe_unused]] tensor_box<Rank>& b, [[maybe_unused]] const numbers& mesh,
                                [[maybe_unused]] int rank, std::index_sequence<Cs...>) {
    (apply_cut(b, cuts.cuts[Cs], mesh, rank), ...);
  }
  template <std::int64_t... E>
  static constexpr tensor_box<sizeof...(E)> box(const numbers& mesh, const shape<E...>& s, int rank) {
    require_rank(mesh.size, rank);
    tensor_box<sizeof...(E)> b{{}, s.extents()};
    if constexpr (fits<E...>()) cut_all(b, mesh, rank, each_cut{});
    if constexpr (has_halo && fits<E...>())
      for (const cut& c : cuts)
        if (c.halo != 0) apply_halo(b, c, s.extents());
    return b;
  }
  template <std::size_t Rank, std::size_t... Cs>
  static constexpr int find_all([[maybe_unused]] std::array<std::int64_t, Rank> index,
                                [[maybe_unused]] std::array<std::int64_t, Rank> extents,
                                [[maybe_unused]] const numbers& mesh, std::index_sequence<Cs...>) {
    int rank = 0;
    (find_part(rank, index, extents, cuts.cuts[Cs], mesh), ...);
    return rank;
  }
  // The lowest rank that holds the element, in its block where there are halos: coordinate 0 along every axis that does not split.
  // Inlined by order: clang finds it too large, and would divide at run time what is known.
  template <std::int64_t... E>
  [[gnu::always_inline]] static constexpr int owner_in(const numbers& mesh, const shape<E...>& s,
                                                       const std::array<std::int64_t, sizeof...(E)>& index) {
    require_index(s.extents(), index, "a tensor");
    if constexpr (fits<E...>())
      return find_all(index, s.extents(), mesh, each_cut{});
    else
      return 0;
  }
  template <std::int64_t... E>
  static constexpr tensor_part<sizeof...(E), Mesh::rank> part_in(const numbers& mesh, const shape<E...>& s, int rank) {
    require_rank(mesh.size, rank);
    if constexpr (fits<E...>())
      return part_of(cuts, mesh, s.extents(), rank);
    else
      return {};
  }
  // Elements held, and the memory they take.
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> held(const numbers& mesh, const shape<E...>& s, int rank) {
    return box(mesh, s, rank).extent;
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> stored(const numbers& mesh, const shape<E...>& s, int rank) {
    if constexpr (is_padded)
      return part_in(mesh, s, rank).stored();
    else
      return held(mesh, s, rank);
  }
  template <std::int64_t... E>
  static constexpr dynamic_shape<sizeof...(E)> stored_shape(const numbers& mesh, const shape<E...>& s, int rank) {
    if constexpr (is_padded)  // the policy says how much memory that is
      return make_shape(stored(mesh, s, rank));
    else
      return countable_shape::of(stored(mesh, s, rank));
  }
  template <std::int64_t... E>
  static constexpr std::int64_t stored_size(const numbers& mesh, const shape<E...>& s, int rank) {
    if constexpr (is_padded)
      return counted(product_of_counts(stored(mesh, s, rank)), s.extents(), "takes more elements of memory");
    else
      return countable_product_of(stored(mesh, s, rank));
  }
  template <std::int64_t... E>
  static constexpr std::int64_t bytes_of(std::int64_t elements, const shape<E...>& s, std::size_t element_size) {
    return counted(product_of_counts(elements, static_cast<std::int64_t>(element_size)), s.extents(), "has more bytes");
  }
  // Balanced parts: the first rank has the most. Of others it depends.
  template <std::int64_t... E>
  static constexpr std::int64_t largest_size(const numbers& mesh, const shape<E...>& s) {
    std::int64_t most = stored_size(mesh, s, 0);
    if constexpr (!only_balanced)
      for (int rank = 1; rank < mesh.size; ++rank) {
        const std::int64_t n = stored_size(mesh, s, rank);
        if (n > most) most = n;
      }
    return most;
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> offset_in(const numbers& mesh, const shape<E...>& s,
                                                                    int rank) {
    static_assert(
        is_contiguous,
        "heddle: local_offset: this layout deals out several intervals of a dimension, so there is no one offset; use "
        "to_global, or part(shape, rank)");
    return box(mesh, s, rank).offset;
  }
  template <std::int64_t... E>
  static constexpr bool holds(const numbers& mesh, const shape<E...>& s, int rank,
                              const std::array<std::int64_t, sizeof...(E)>& index) {
    if constexpr (is_contiguous) {
      return inside(box(mesh, s, rank), index);
    } else {
      for (std::size_t d = 0; d < sizeof...(E); ++d)
        if (index[d] < 0 || index[d] >= s.extent(d)) return false;
      return part_in(mesh, s, rank).holds(index);
    }
  }
  template <std::size_t Rank>
  [[noreturn]] static void throw_elsewhere(const tensor_box<Rank>& b, int rank,
                                           const std::array<std::int64_t, Rank>& index) {
    throw layout_error("heddle: rank " + std::to_string(rank) + " does not hold element " + index_text(index) +
                       "; it holds " + index_text(b.extent) + " elements" +
                       (is_contiguous ? " from " + index_text(b.offset) : std::string()));
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> into_local(const numbers& mesh, const shape<E...>& s,
                                                                     int rank,
                                                                     std::array<std::int64_t, sizeof...(E)> index) {
    require_index(s.extents(), index, "a tensor");
    if (!holds(mesh, s, rank, index)) throw_elsewhere(box(mesh, s, rank), rank, index);
    if constexpr (is_contiguous) {
      const auto b = box(mesh, s, rank);
      for (std::size_t d = 0; d < sizeof...(E); ++d) index[d] -= b.offset[d];
      return index;
    } else {
      return part_in(mesh, s, rank).to_local(index);
    }
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> into_global(const numbers& mesh, const shape<E...>& s,
                                                                      int rank,
                                                                      std::array<std::int64_t, sizeof...(E)> index) {
    const auto b = box(mesh, s, rank);
    require_index(b.extent, index, "a shard");
    if constexpr (is_contiguous) {
      for (std::size_t d = 0; d < sizeof...(E); ++d) index[d] += b.offset[d];
      return index;
    } else {
      return part_in(mesh, s, rank).to_global(index);
    }
  }
};

// Static mesh: an empty object, every function static.
template <class Mesh, class... Ps>
class static_layout : public layout_facts<Mesh, Ps...> {
  using facts = layout_facts<Mesh, Ps...>;
  static constexpr auto mesh_now = numbers_of(Mesh::extents());

 public:
  static constexpr Mesh mesh() noexcept { return {}; }

  template <std::int64_t... E>
  static constexpr dynamic_shape<sizeof...(E)> local_shape(const shape<E...>& s, int rank) {
    return facts::stored_shape(mesh_now, s, rank);
  }
  template <std::int64_t... E>
  static constexpr dynamic_shape<sizeof...(E)> valid_shape(const shape<E...>& s, int rank) {
    return countable_shape::of(facts::held(mesh_now, s, rank));
  }
  template <std::int64_t... E>
  static constexpr tensor_part<sizeof...(E), Mesh::rank> part(const shape<E...>& s, int rank) {
    return facts::part_in(mesh_now, s, rank);
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> local_offset(const shape<E...>& s, int rank) {
    return facts::offset_in(mesh_now, s, rank);
  }
  template <std::int64_t... E>
  static constexpr std::int64_t local_size(const shape<E...>& s, int rank) {
    return facts::stored_size(mesh_now, s, rank);
  }
  template <std::int64_t... E>
  [[gnu::always_inline]] static constexpr int owner(const shape<E...>& s,
                                                    const std::array<std::int64_t, sizeof...(E)>& index) {
    return facts::owner_in(mesh_now, s, index);
  }
  template <std::int64_t... E>
  static constexpr bool owns(const shape<E...>& s, int rank, const std::array<std::int64_t, sizeof...(E)>& index) {
    require_rank(mesh_now.size, rank);
    return facts::holds(mesh_now, s, rank, index);
  }
  static constexpr bool is_primary(int rank) {
    require_rank(mesh_now.size, rank);
    return is_first_copy(facts::table, mesh_now, rank);
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> to_local(
      const shape<E...>& s, int rank, const std::array<std::int64_t, sizeof...(E)>& index) {
    return facts::into_local(mesh_now, s, rank, index);
  }
  template <std::int64_t... E>
  static constexpr std::array<std::int64_t, sizeof...(E)> to_global(
      const shape<E...>& s, int rank, const std::array<std::int64_t, sizeof...(E)>& index) {
    return facts::into_global(mesh_now, s, rank, index);
  }
  template <std::int64_t... E>
  static constexpr std::int64_t bytes_held(const shape<E...>& s, std::size_t element_size, int rank) {
    return facts::bytes_of(local_size(s, rank), s, element_size);
  }
  template <std::int64_t... E>
  static constexpr std::int64_t bytes_per_rank(const shape<E...>& s, std::size_t element_size) {
    return facts::bytes_of(facts::largest_size(mesh_now, s), s, element_size);
  }
};

// Dynamic mesh: stores the mesh; the same functions as members.
template <class Mesh, class... Ps>
class dynamic_layout : public layout_facts<Mesh, Ps...> {
  using facts = layout_facts<Mesh, Ps...>;

 public:
  constexpr dynamic_layout() = default;
  constexpr explicit dynamic_layout(const Mesh& mesh) : mesh_(mesh) {}

  constexpr const Mesh& mesh() const noexcept { return mesh_; }

  template <std::int64_t... E>
  constexpr dynamic_shape<sizeof...(E)> local_shape(const shape<E...>& s, int rank) const {
    return facts::stored_shape(numbers_of(mesh_.extents()), s, rank);
  }
  template <std::int64_t... E>
  constexpr dynamic_shape<sizeof...(E)> valid_shape(const shape<E...>& s, int rank) const {
    return countable_shape::of(facts::held(numbers_of(mesh_.extents()), s, rank));
  }
  template <std::int64_t... E>
  constexpr tensor_part<sizeof...(E), Mesh::rank> part(const shape<E...>& s, int rank) const {
    return facts::part_in(numbers_of(mesh_.extents()), s, rank);
  }
  template <std::int64_t... E>
  constexpr std::array<std::int64_t, sizeof...(E)> local_offset(const shape<E...>& s, int rank) const {
    return facts::offset_in(numbers_of(mesh_.extents()), s, rank);
  }
  template <std::int64_t... E>
  constexpr std::int64_t local_size(const shape<E...>& s, int rank) const {
    return facts::stored_size(numbers_of(mesh_.extents()), s, rank);
  }
  template <std::int64_t... E>
  constexpr int owner(const shape<E...>& s, const std::array<std::int64_t, sizeof...(E)>& index) const {
    return facts::owner_in(numbers_of(mesh_.extents()), s, index);
  }
  template <std::int64_t... E>
  constexpr bool owns(const shape<E...>& s, int rank, const std::array<std::int64_t, sizeof...(E)>& index) const {
    require_rank(numbers_of(mesh_.extents()).size, rank);
    return facts::holds(numbers_of(mesh_.extents()), s, rank, index);
  }
  constexpr bool is_primary(int rank) const {
    const auto mesh = numbers_of(mesh_.extents());
    require_rank(mesh.size, rank);
    return is_first_copy(facts::table, mesh, rank);
  }
  template <std::int64_t... E>
  constexpr std::array<std::int64_t, sizeof...(E)> to_local(const shape<E...>& s, int rank,
                                                            const std::array<std::int64_t, sizeof...(E)>& index) const {
    return facts::into_local(numbers_of(mesh_.extents()), s, rank, index);
  }
  template <std::int64_t... E>
  constexpr std::array<std::int64_t, sizeof...(E)> to_global(
      const shape<E...>& s, int rank, const std::array<std::int64_t, sizeof...(E)>& index) const {
    return facts::into_global(numbers_of(mesh_.extents()), s, rank, index);
  }
  template <std::int64_t... E>
  constexpr std::int64_t bytes_held(const shape<E...>& s, std::size_t element_size, int rank) const {
    return facts::bytes_of(local_size(s, rank), s, element_size);
  }
  template <std::int64_t... E>
  constexpr std::int64_t bytes_per_rank(const shape<E...>& s, std::size_t element_size) const {
    return facts::bytes_of(facts::largest_size(numbers_of(mesh_.extents()), s), s, element_size);
  }

 private:
  Mesh mesh_{};
};

template <class Mesh, class... Ps>
using layout_base = std::conditional_t<Mesh::is_static, static_layout<Mesh, Ps...>, dynamic_layout<Mesh, Ps...>>;

}  // namespace detail

/// The type behind `layout<Mesh, ...>`, in canonical form; spell it through `layout`.
/// With a static mesh it is an empty object and all functions are static; otherwise it stores the mesh, `L{mesh}`.
///
/// Functions (`s` is the shape of the whole tensor, `rank` a rank of the mesh, an index one number per dimension):
///   local_shape(s, rank), local_size(s, rank)   the memory of what the rank holds
///   valid_shape(s, rank)        the elements among it: the same, except where parts are padded
///   local_offset(s, rank)       where the rank's box begins; a compile error where a policy deals out several intervals
///   part(s, rank)               maps between local and global places of each dimension, for any policy
///   owner(s, index)             the lowest rank that holds the element; where there are halos, in its block
///   owns(s, rank, index)        whether the rank holds it (a contribution to it, along partial axes), in its halo too
///   is_primary(rank)            true on exactly one of the ranks that hold the same copy
///   to_local(s, rank, index), to_global(s, rank, index)                 inverse of each other inside the box
///   bytes_held(s, element_size, rank), bytes_per_rank(s, element_size)  exactly, and the most any rank holds
/// Units: elements, unless the name says bytes.
/// Errors: `layout_error` for a rank, an index or an extent out of range, sizes of a ragged split that do not add up, or bytes
/// that a 64-bit number does not count; a compile error if the layout splits a dimension that the shape does not have.
/// Source: Yuan et al. 2021 (OneFlow), arXiv:2110.15032; nested cuts as in GSPMD, arXiv:2105.04663.
template <class Mesh, class... Placements>
class basic_layout : public detail::layout_base<Mesh, Placements...> {
 public:
  using detail::layout_base<Mesh, Placements...>::layout_base;

  constexpr basic_layout() = default;
  /// A layout over a static mesh may be made from the mesh too, so that generic code needs no case distinction.
  constexpr explicit basic_layout(const Mesh&)
    requires(Mesh::is_static)
  {}

  friend constexpr bool operator==(const basic_layout& a, const basic_layout& b) { return a.mesh() == b.mesh(); }
};

/// WHERE a tensor lives: what each axis of the mesh does to it, in any order. An axis that is not named replicates.
/// Two spellings of one layout are one type.
/// `layout<mesh, shard<0, dp>, partial<plus, tp>>`
/// Errors (at compile time): an axis used twice, an axis the mesh lacks, one dimension in two `shard`s.
template <class Mesh, class... Placements>
using layout = typename detail::canonical_layout<false, Mesh, Placements...>::type;

/// As `layout`, but axes that the mesh lacks drop out: for programs that run on meshes with and without an axis.
template <class Mesh, class... Placements>
using layout_if = typename detail::canonical_layout<true, Mesh, Placements...>::type;

/// Any `layout<...>`.
template <class L>
concept layout_like = std::derived_from<L, detail::layout_tag>;

namespace detail {
// Text is put together by functions that are compiled once; templates only look up names.
inline void append_placement(std::string& text, const std::string& what, const std::string_view* axes,
                             std::size_t count) {
  text += (text.empty() ? "" : ", ") + what;
  for (std::size_t i = 0; i != count; ++i) {
    text += ", ";
    text += axes[i];
  }
  text += ">";
}
inline void append_names(std::string& text, const std::string& what, const std::string_view* axes, std::size_t count) {
  text += (text.empty() ? "" : ", ") + what;
  for (std::size_t i = 0; i != count; ++i) {
    text += i == 0 ? "" : ", ";
    text += axes[i];
  }
  text += ">";
}
template <class... Axes>
constexpr std::array<std::string_view, sizeof...(Axes) + 1> short_names(type_list<Axes...>) {
  return {short_type_name<Axes>()..., std::string_view{}};
}
template <class P>
void append_placement_of(std::string& text) {
  if constexpr (is_shard<P>) {
    constexpr auto items = short_names(typename P::items{});
    std::string what = P::width > 0 ? "halo<" : "shard<";
    what += std::to_string(P::dim);
    if (P::width > 0) what += ", " + std::to_string(P::width);
    append_placement(text, what, items.data(), items.size() - 1);
    return;
  }
  constexpr auto names = short_names(typename P::axes{});
  if constexpr (is_identical<P> || is_varying<P>)
    append_names(text, is_identical<P> ? "identical<" : "varying<", names.data(), names.size() - 1);
  else if constexpr (is_partial<P>)
    append_placement(text, "partial<" + std::string(short_type_name<typename P::op>()), names.data(), names.size() - 1);
}
template <class Mesh, class... Ps>
std::string placements_text(const basic_layout<Mesh, Ps...>*) {
  std::string text;
  (append_placement_of<Ps>(text), ...);
  return text.empty() ? "replicated" : text;
}
}  // namespace detail

/// `"shard<0, dp>, partial<plus, tp> on dp=2 x pp=2 x tp=2"`, `"replicated on dp=2"`.
template <layout_like L>
std::string to_string(const L& layout) {
  return detail::placements_text(&layout) + " on " + to_string(layout.mesh());
}

}  // namespace heddle::inline v0

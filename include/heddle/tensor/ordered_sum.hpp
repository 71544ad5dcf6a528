// heddle/tensor/ordered_sum.hpp: sums in a fixed order, the same bits on every mesh.
#pragma once

#include <heddle/core/dyadic.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// A node of the dyadic tree over the dimension, and where its value is.
struct tree_node {
  std::int64_t begin = 0, end = 0;  // in the whole dimension
  std::int64_t at = 0;              // of the first element in the part, or of the node among all values
};

// The complete nodes of one rank's part of a dimension, in memory order: at most 2 log2(n) for each of its intervals.
template <class DimensionPart>
std::vector<tree_node> nodes_of(const DimensionPart& part, std::int64_t n) {
  std::vector<tree_node> nodes;
  for (std::int64_t l = 0; l < part.size();) {
    const std::int64_t first = part.to_global(l), together = (std::min)(part.run(l), part.size() - l);
    for (std::int64_t g = first; g < first + together;) {
      const std::int64_t end = dyadic_node_end(g, first + together, n);
      nodes.push_back({g, end, l + g - first});
      g = end;
    }
    l += together;
  }
  return nodes;
}

// One node from neighbouring rows of `width` elements, into `out`; `room` holds a row per level below.
template <class Op, class T>
void fold_rows(const T* rows, std::int64_t count, std::int64_t width, T* out, T* room) {
  const Op op{};
  if (count <= 2) {
    if (count == 1)
      std::copy_n(rows, width, out);
    else
      for (std::int64_t i = 0; i < width; ++i) out[i] = op(rows[i], rows[width + i]);
    return;
  }
  const std::int64_t half = dyadic_split(count);
  fold_rows<Op>(rows, half, width, out, room);
  fold_rows<Op>(rows + half * width, count - half, width, room, room + width);
  for (std::int64_t i = 0; i < width; ++i) out[i] = op(out[i], room[i]);
}
template <class Op, class T>
T fold_scalars(const T* x, std::int64_t count) {
  const Op op{};
  if (count == 1) return x[0];
  if (count == 8) return op(op(op(x[0], x[1]), op(x[2], x[3])), op(op(x[4], x[5]), op(x[6], x[7])));
  const std::int64_t half = dyadic_split(count);
  return op(fold_scalars<Op>(x, half), fold_scalars<Op>(x + half, count - half));
}

// Combines the values of all nodes, sorted and covering [begin, end), into the first of them; `next` runs over the nodes.
template <class Op, class T>
T* fold_nodes(const std::vector<tree_node>& nodes, std::size_t& next, std::int64_t begin, std::int64_t end,
              std::int64_t width, T* values) {
  if (nodes[next].end == end) return values + width * nodes[next++].at;
  const std::int64_t middle = begin + dyadic_split(end - begin);
  T* const left = fold_nodes<Op>(nodes, next, begin, middle, width, values);
  const T* const right = fold_nodes<Op>(nodes, next, middle, end, width, values);
  const Op op{};
  for (std::int64_t i = 0; i < width; ++i) left[i] = op(left[i], right[i]);
  return left;
}

// A local part seen from the dimension that is summed: [outer, stored, inner].
struct around_dimension {
  std::int64_t outer = 1, stored = 1, inner = 1;
  std::int64_t width() const noexcept { return outer * inner; }
};

// The values of one rank's nodes, [nodes, outer, inner].
template <class Op, class T>
buffer<T> node_values(const std::vector<tree_node>& nodes, const T* source, const around_dimension& a) {
  const auto count = static_cast<std::int64_t>(nodes.size());
  buffer<T> values(count * a.width());
  buffer<T> room(a.inner == 1 ? 0 : a.inner * dyadic_depth(a.stored));
  for (std::int64_t k = 0; k < count; ++k) {
    const tree_node& node = nodes[static_cast<std::size_t>(k)];
    for (std::int64_t o = 0; o < a.outer; ++o) {
      const T* const rows = source + (o * a.stored + node.at) * a.inner;
      T* const out = values.data() + k * a.width() + o * a.inner;
      if (a.inner == 1)
        *out = fold_scalars<Op>(rows, node.end - node.begin);
      else
        fold_rows<Op>(rows, node.end - node.begin, a.inner, out, room.data());
    }
  }
  return values;
}

// All ranks' nodes in the order of the dimension; `at` becomes the place of the node among the gathered values.
inline std::vector<tree_node> in_order(const std::vector<std::vector<tree_node>>& of_ranks) {
  std::vector<tree_node> all;
  for (const auto& nodes : of_ranks)
    for (const tree_node& node : nodes) all.push_back({node.begin, node.end, static_cast<std::int64_t>(all.size())});
  std::sort(all.begin(), all.end(), [](const tree_node& a, const tree_node& b) { return a.begin < b.begin; });
  return all;
}

// Folds dimension `Dim` of this rank's part over the whole dimension: afterwards every rank along its axes has the result.
template <class Op, std::size_t Dim, class T, std::size_t Rank, class Layout, class World, class... Axes>
buffer<T> fold_dimension(std::span<const T> source, std::array<std::int64_t, Rank>& stored,
                         const dynamic_shape<Rank>& whole, const Layout& layout, World& world, type_list<Axes...>) {
  const std::int64_t n = whole.extent(Dim);
  around_dimension a;
  for (std::size_t d = 0; d < Rank; ++d) (d < Dim ? a.outer : d == Dim ? a.stored : a.inner) *= stored[d];
  stored[Dim] = 1;
  buffer<T> result(a.width());
  if (n == 0 || a.width() == 0) {
    std::fill(result.begin(), result.end(), Op::template identity<T>());
    return result;
  }
  const int rank = world.rank();
  std::vector<std::vector<tree_node>> of_ranks;
  buffer<T> values;
  if constexpr (sizeof...(Axes) == 0) {
    of_ranks.push_back(nodes_of(layout.part(whole, rank).dims[Dim], n));
    values = node_values<Op>(of_ranks[0], source.data(), a);
  } else {
    auto& group = world.template along<Axes...>();
    const auto& mesh = layout.mesh();
    std::vector<std::int64_t> counts;
    std::int64_t total = 0;
    for (int r = 0; r < group.size(); ++r) {  // who has which nodes is known; only their values travel
      of_ranks.push_back(nodes_of(layout.part(whole, mesh.template group_member<Axes...>(rank, r)).dims[Dim], n));
      counts.push_back(static_cast<std::int64_t>(of_ranks.back().size()) * a.width());
      total += counts.back();
    }
    values = node_values<Op>(of_ranks[static_cast<std::size_t>(group.rank())], source.data(), a);
    if (group.size() > 1) {
      buffer<T> gathered(total);
      group.all_gather_v(std::span<const T>(values.data(), values.size()),
                         std::span<T>(gathered.data(), gathered.size()), std::span<const std::int64_t>(counts));
      values = std::move(gathered);
    }
  }
  std::size_t next = 0;
  const T* const sum = fold_nodes<Op>(in_order(of_ranks), next, 0, n, a.width(), values.data());
  std::copy_n(sum, a.width(), result.data());
  return result;
}

// The axes that split a dimension, major to minor.
template <class Layout, int Dim, std::size_t... Is>
auto axes_splitting(std::index_sequence<Is...>) {
  [[maybe_unused]] constexpr auto position = [](int level) {
    for (std::size_t a = 0; a < Layout::mesh_type::rank; ++a)
      if (Layout::table.use[a].role == axis_role::sharded && Layout::table.use[a].dim == Dim &&
          Layout::table.use[a].level == level)
        return a;
    return Layout::mesh_type::rank;
  };
  return type_list<typename list_at<position(static_cast<int>(Is)), typename Layout::mesh_type::tags>::type...>{};
}
template <class Layout, int Dim>
constexpr std::size_t cuts_of_dimension() {
  std::size_t count = 0;
  for (const axis_use& u : Layout::table.use)
    if (u.role == axis_role::sharded && u.dim == Dim) ++count;
  return count;
}
template <class Layout, int Dim>
using axes_of_dimension =
    decltype(axes_splitting<Layout, Dim>(std::make_index_sequence<cuts_of_dimension<Layout, Dim>()>{}));

template <bool Ok, class... Names>
inline constexpr bool sum_is_ordered = Ok;

template <class Layout, int... Dims>
struct without_dimensions : in_words_of<Layout> {
  static constexpr auto table = [] {
    auto t = Layout::table;
    for (axis_use& u : t.use) {
      if (u.role != axis_role::sharded) continue;
      const int dim = u.dim;
      if (((dim == Dims) || ...))
        u = {};
      else
        u.dim -= (0 + ... + (Dims < dim ? 1 : 0));
    }
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<without_dimensions>;
};

template <std::size_t Rank, int... Dims>
constexpr bool names_each_dimension_once() {
  [[maybe_unused]] std::array<int, Rank + 1> times{};
  bool ok = true;
  ((Dims >= 0 && Dims < static_cast<int>(Rank) ? void(ok = times[static_cast<std::size_t>(Dims)]++ == 0 && ok)
                                               : void(ok = false)),
   ...);
  return ok;
}
template <class Layout, class World, std::size_t Rank, int... Dims>
constexpr bool can_sum_in_order() {
  constexpr bool defined = !Layout::has_partial && !Layout::has_varying;
  constexpr bool dims = names_each_dimension_once<Rank, Dims...>();
  constexpr bool here =
      std::is_same_v<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, typename Layout::mesh_type>;
  static_assert(
      sum_is_ordered<defined, Layout>,
      "heddle: an ordered reduction follows the indices of the whole tensor; of values that are partial or vary along "
      "an axis the order is not known, so keep them split (shard) where they are made, and reduce that dimension");
  static_assert(sum_is_ordered<!Layout::has_halo, Layout>,
                "heddle: an ordered reduction takes each element once, but those of a halo are copies of what other "
                "ranks own; redistribute the tensor to without_halo<layout> (no bytes) first");
  static_assert(sum_is_ordered<dims, Layout>,
                "heddle: ordered_reduce<op, dims...>: each dimension must be one of the tensor's, named once");
  static_assert(sum_is_ordered<here, Layout>,
                "heddle: ordered_reduce: the tensor's layout is on another mesh than the world; make the layout on the "
                "world's mesh");
  return defined && !Layout::has_halo && dims && here;
}

template <class Op, int Dim, class T, std::size_t Rank, class Layout, class World, int... Dims>
void fold_named(buffer<T>& own, std::span<const T>& source, std::array<std::int64_t, Rank>& stored,
                const sharded<T, Rank, Layout>& x, World& world) {
  if constexpr (((Dim == Dims) || ...)) {
    own = fold_dimension<Op, static_cast<std::size_t>(Dim)>(source, stored, x.shape(), x.layout(), world,
                                                            axes_of_dimension<Layout, Dim>{});
    source = {own.data(), own.size()};
  }
}

}  // namespace detail

/// The layout of a tensor of layout `Layout` after these dimensions have been reduced: axes that split one of them replicate,
/// the others stay, with dimensions renumbered.
template <layout_like Layout, int... Dims>
using without_dimensions = typename detail::without_dimensions<Layout, Dims...>::type;

/// Reduces dimensions of a sharded tensor with `Op`, in an order that depends on the tensor's shape only: the last of the named
/// dimensions first, each by one fixed tree (a range is split at the largest power of two below its length). Every mesh
/// and every split policy gives the same bits, the bits that one rank alone gets; `Op` need not even be associative.
/// All ranks of the world call it with their parts of one tensor.
///
/// Each rank folds the tree's nodes that lie in its intervals, at most 2 log2(n) for an interval; their values travel to the
/// ranks along the axes that split the dimension, and everyone folds the rest.
/// Shapes: the result has the other dimensions, in order. Of no elements it is the operator's identity.
/// Errors: `layout_error` if the part belongs to another rank or mesh, or was released; at compile time a partial or varying operand,
/// a dimension that does not exist or is named twice, another mesh.
/// Source: dyadic trees as in Ong and Velickovic 2022, arXiv:2212.08541; the nodes of a range are those of a segment tree.
template <class Op, int... Dims, class T, std::size_t Rank, layout_like Layout, class World>
  requires monoid<Op, T>
sharded<T, Rank - sizeof...(Dims), without_dimensions<Layout, Dims...>> ordered_reduce(
    const sharded<T, Rank, Layout>& x, World& world) {
  using result_layout = without_dimensions<Layout, Dims...>;
  if constexpr (detail::can_sum_in_order<Layout, World, Rank, Dims...>()) {
    if (!(world.mesh() == x.layout().mesh()) || world.rank() != x.rank())
      throw layout_error("heddle: ordered_reduce: rank " + std::to_string(x.rank()) + "'s part of a tensor on " +
                         to_string(x.layout().mesh()) + " came to rank " + std::to_string(world.rank()) +
                         " of a world on " + to_string(world.mesh()));
    detail::require_held(x);
    std::array<std::int64_t, Rank> stored = x.local_shape().extents();
    std::array<std::int64_t, Rank - sizeof...(Dims)> kept{};
    for (std::size_t d = 0, k = 0; d < Rank; ++d)
      if (((static_cast<int>(d) != Dims) && ...)) kept[k++] = x.shape().extent(d);
    buffer<T> own;
    std::span<const T> source = x.elements();
    [&]<std::size_t... Ds>(std::index_sequence<Ds...>) {
      (detail::fold_named<Op, static_cast<int>(Rank - 1 - Ds), T, Rank, Layout, World, Dims...>(own, source, stored, x,
                                                                                                world),
       ...);
    }(std::make_index_sequence<Rank>{});
    if constexpr (sizeof...(Dims) == 0) {
      own = buffer<T>(static_cast<std::int64_t>(source.size()));
      std::copy(source.begin(), source.end(), own.begin());
    }
    return {result_layout{x.layout().mesh()}, make_shape(kept), x.rank(), std::move(own)};
  } else {
    throw layout_error("heddle: ordered_reduce: refused");  // already reported
  }
}

/// The sum over these dimensions, bit for bit the same on every mesh; see `ordered_reduce`.
/// `ordered_sum<1>(x, world)` sums the rows of a matrix.
template <int... Dims, class T, std::size_t Rank, layout_like Layout, class World>
auto ordered_sum(const sharded<T, Rank, Layout>& x, World& world) {
  return ordered_reduce<plus, Dims...>(x, world);
}

namespace detail {
template <class Op, class T, std::size_t Rank, class Layout, class World, std::size_t... Ds>
T ordered_total(const sharded<T, Rank, Layout>& x, World& world, std::index_sequence<Ds...>) {
  const auto total = ordered_reduce<Op, static_cast<int>(Ds)...>(x, world);
  return total.elements()[0];
}
}  // namespace detail

/// The sum of all elements, the same bits on every rank of every mesh; see `ordered_reduce`.
template <class Op = plus, class T, std::size_t Rank, layout_like Layout, class World>
T ordered_total(const sharded<T, Rank, Layout>& x, World& world) {
  return detail::ordered_total<Op>(x, world, std::make_index_sequence<Rank>{});
}

}  // namespace heddle::inline v0

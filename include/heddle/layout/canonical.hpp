// heddle/layout/canonical.hpp: brings placements as spelled to one canonical form.
#pragma once

#include <heddle/layout/placement.hpp>
#include <heddle/mesh/mesh.hpp>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

template <class Mesh, class... Placements>
class basic_layout;

namespace detail {

enum class layout_problem : unsigned char {
  none,
  not_a_placement,
  negative_dim,
  no_axis,
  dim_twice,
  unknown_axis,
  axis_twice,
  two_operators,
  order_matters,
  policy_after_axes,
  other_parts,
  negative_width,
  halo_policy
};

// The extents of a mesh's axes, 0 where they are known only at start-up.
template <class Mesh, class... Tags>
constexpr std::array<int, sizeof...(Tags)> extents_or_unknown(type_list<Tags...>) {
  return {Mesh::template axis_of<Tags>::fixed_size...};
}

// A split policy: its place in the layout's list of them, and its functions.
struct policy_use {
  int split = 0;
  const split_functions* how = &functions_of<split::balanced>;
};
template <class P, class Splits>
struct policies_in {
  static constexpr policy_use value[1]{};
};
template <int Dim, class... Items, class Splits>
struct policies_in<shard<Dim, Items...>, Splits> {
  template <class... Ps>
  struct of;
  template <class... Ps>
  struct of<type_list<Ps...>> {
    static constexpr policy_use value[]{policy_use{static_cast<int>(list_index<Ps, Splits>), &functions_of<Ps>}...,
                                        policy_use{}};
  };
  static constexpr auto& value = of<typename shard<Dim, Items...>::policies>::value;
};
template <int Dim, std::int64_t Width, class... Items, class Splits>
struct policies_in<halo<Dim, Width, Items...>, Splits> : policies_in<shard<Dim, Items...>, Splits> {};
template <class P>
inline constexpr bool ends_with_policy = false;
template <int Dim, class First, class... Rest>
inline constexpr bool ends_with_policy<shard<Dim, First, Rest...>> =
    is_split_policy<type_at<sizeof...(Rest), First, Rest...>>;
template <int Dim, std::int64_t Width, class First, class... Rest>
inline constexpr bool ends_with_policy<halo<Dim, Width, First, Rest...>> =
    is_split_policy<type_at<sizeof...(Rest), First, Rest...>>;

// A spelled layout as a value, or the first mistake in it: which placement, and which of its axes.
template <std::size_t Axes>
struct spelled_layout {
  axis_table<Axes> table{};
  bool named[Axes == 0 ? 1 : Axes]{};
  layout_problem problem = layout_problem::none;
  std::size_t placement = 0;
  std::size_t axis = 0;

  constexpr void refuse(layout_problem p, std::size_t at_placement, std::size_t at_axis = 0) {
    if (problem != layout_problem::none) return;
    problem = p;
    placement = at_placement;
    axis = at_axis;
  }

  // `positions` are places in the mesh, `Axes` for an axis the mesh lacks; `policies` say how each one cuts.
  template <std::size_t Count>
  constexpr void name(const std::size_t (&positions)[Count], const policy_use (&policies)[Count], std::size_t count,
                      axis_use use, std::size_t at, bool skip_unknown) {
    int level = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t a = positions[i];
      if (a >= Axes) {
        if (!skip_unknown) refuse(layout_problem::unknown_axis, at, i);
        continue;
      }
      if (named[a]) {
        refuse(layout_problem::axis_twice, at, i);
        continue;
      }
      named[a] = true;
      table.use[a] = use;
      if (use.role != axis_role::sharded) continue;
      table.use[a].level = level++;
      table.use[a].split = policies[i].split;
      table.use[a].how = policies[i].how;
    }
  }
};

template <class Mesh, class Tags, class Ops, class Splits, class List>
struct placement_reader;
template <class Mesh, class... Tags, class Ops, class Splits, class... Axes>
struct placement_reader<Mesh, type_list<Tags...>, Ops, Splits, type_list<Axes...>> {
  template <class P>
  static constexpr void read(spelled_layout<sizeof...(Tags)>& s, std::size_t at, bool skip_unknown) {
    constexpr std::size_t positions[sizeof...(Axes) + 1]{index_of<Axes, Tags...>..., 0};
    // With axes that the mesh lacks, other placements are not compared to one of which nothing is left.
    bool here = !skip_unknown;
    for (std::size_t i = 0; i != sizeof...(Axes); ++i) here = here || positions[i] < sizeof...(Tags);
    axis_use use;
    if constexpr (is_shard<P>) {
      use.role = axis_role::sharded;
      use.dim = P::dim;
      use.halo = P::width;
      if (P::dim < 0) s.refuse(layout_problem::negative_dim, at);
      if (P::width < 0) s.refuse(layout_problem::negative_width, at);
    }
    if constexpr (is_identical<P>) use.role = axis_role::identical;
    if constexpr (is_varying<P>) use.role = axis_role::varying;
    if (ends_with_policy<P>) s.refuse(layout_problem::policy_after_axes, at);
    if constexpr (is_partial<P>) {
      use.role = axis_role::partial;
      use.op = static_cast<int>(list_index<typename P::op, Ops>);
    }
    if constexpr (is_partial<P>)
      if (!is_commutative<typename P::op>) s.refuse(layout_problem::order_matters, at);
    if constexpr (is_partial<P>)
      for (const axis_use& other : s.table.use)
        if (here && other.role == axis_role::partial && other.op != use.op) s.refuse(layout_problem::two_operators, at);
    if (!is_replicate<P> && sizeof...(Axes) == 0 && !skip_unknown) s.refuse(layout_problem::no_axis, at);
    if constexpr (is_shard<P>)
      for (const axis_use& other : s.table.use)
        if (here && other.role == axis_role::sharded && other.dim == P::dim) s.refuse(layout_problem::dim_twice, at);
    if constexpr (is_shard<P>) {
      constexpr auto& policies = policies_in<P, Splits>::value;
      constexpr auto extents = extents_or_unknown<Mesh>(typename Mesh::tags{});
      for (std::size_t i = 0; i < sizeof...(Axes); ++i) {
        const int parts = positions[i] < sizeof...(Tags) ? extents[positions[i]] : 0;
        if (parts > 0 && policies[i].how->parts > 0 && policies[i].how->parts != parts)
          s.refuse(layout_problem::other_parts, at, i);
        if (P::width > 0 && (!policies[i].how->contiguous || policies[i].how->pads))
          s.refuse(layout_problem::halo_policy, at);
      }
      s.name(positions, policies, sizeof...(Axes), use, at, skip_unknown);
    } else {
      constexpr policy_use none[sizeof...(Axes) + 1]{};
      s.name(positions, none, sizeof...(Axes), use, at, skip_unknown);
    }
  }
};

template <class Mesh, class Ops, class Splits, class... Ps>
constexpr auto read_placements(bool skip_unknown) {
  spelled_layout<Mesh::rank> s;
  [[maybe_unused]] std::size_t at = 0;
  [[maybe_unused]] const auto one = [&]<class P>(std::type_identity<P>) {
    if constexpr (is_placement<P>)
      placement_reader<Mesh, typename Mesh::tags, Ops, Splits, typename P::axes>::template read<P>(s, at, skip_unknown);
    else
      s.refuse(layout_problem::not_a_placement, at);
    ++at;
  };
  (one(std::type_identity<Ps>{}), ...);
  return s;
}

// The canonical order of placements: split dimensions ascending, then `partial`, `identical` and `varying`, each with its
// axes in mesh order.
template <std::size_t Axes>
struct placement_group {
  axis_use use{};
  std::size_t count = 0;
  std::size_t axes[Axes == 0 ? 1 : Axes]{};
  int splits[Axes == 0 ? 1 : Axes]{};
  bool only_balanced = true;
};
template <std::size_t Axes>
struct placement_groups {
  std::size_t count = 0;
  placement_group<Axes> group[Axes == 0 ? 1 : Axes]{};
};

template <std::size_t Axes>
constexpr placement_groups<Axes> canonical_groups(const axis_table<Axes>& table) {
  placement_groups<Axes> out;
  int dims = 0;
  for (std::size_t a = 0; a < Axes; ++a)
    if (table.use[a].dim >= dims) dims = table.use[a].dim + 1;
  for (std::size_t taken = 0; taken < Axes;) {  // the smallest dimension not yet emitted
    int best = dims;
    for (std::size_t a = 0; a < Axes; ++a) {
      const axis_use& u = table.use[a];
      const int after = out.count == 0 ? -1 : out.group[out.count - 1].use.dim;
      if (u.role == axis_role::sharded && u.dim > after && u.dim < best) best = u.dim;
    }
    if (best == dims) break;
    auto& g = out.group[out.count++];
    for (int level = 0;; ++level) {
      bool found = false;
      for (std::size_t a = 0; a < Axes; ++a) {
        const axis_use& u = table.use[a];
        if (u.role != axis_role::sharded || u.dim != best || u.level != level) continue;
        if (level == 0) g.use = u;
        g.splits[g.count] = u.split;
        g.axes[g.count++] = a;
        g.only_balanced = g.only_balanced && u.split == 0;
        found = true;
        ++taken;
      }
      if (!found) break;
    }
  }
  for (const axis_role role : {axis_role::partial, axis_role::identical, axis_role::varying}) {
    const std::size_t first = out.count;
    for (std::size_t a = 0; a < Axes; ++a) {
      const axis_use& u = table.use[a];
      if (u.role != role) continue;
      std::size_t g = first;
      while (g < out.count && out.group[g].use.op != u.op) ++g;
      if (g == out.count) out.group[out.count++].use = u;
      out.group[g].axes[out.group[g].count++] = a;
    }
  }
  return out;
}

// Axes and the policies between them, as a canonical `shard` spells them: a policy only where it changes.
template <int Dim, std::int64_t Width, class... Lists>
struct halo_of_lists {
  template <class... Items>
  static halo<Dim, Width, Items...> spell(type_list<Items...>);
  using type = decltype(spell(joined_lists<Lists...>{}));
};
template <int Dim, class... Lists>
struct shard_of_lists {
  template <class... Items>
  static shard<Dim, Items...> spell(type_list<Items...>);
  using type = decltype(spell(joined_lists<Lists...>{}));
};
template <class Holder, std::size_t G, std::size_t At>
constexpr auto items_for() {
  constexpr auto g = Holder::groups.group[G];
  using axis_tag = typename list_at<g.axes[At], typename Holder::mesh_type::tags>::type;
  if constexpr (g.splits[At] == (At == 0 ? 0 : g.splits[At == 0 ? 0 : At - 1]))
    return type_list<axis_tag>{};
  else
    return type_list<typename list_at<static_cast<std::size_t>(g.splits[At]), typename Holder::splits>::type,
                     axis_tag>{};
}

// The mesh, operators and split policies of a layout, for holders of another table in its words.
template <class Source>
struct in_words_of {
  using mesh_type = typename Source::mesh_type;
  using ops = typename Source::ops;
  using splits = typename Source::splits;
};
// `Holder` has `mesh_type`, `ops`, `splits` and static `groups`; `layout_from<Holder>` is the canonical layout for them.
template <class Holder, std::size_t G, std::size_t... Is>
constexpr auto placement_for(std::index_sequence<Is...>) {
  constexpr auto g = Holder::groups.group[G];
  using tags = typename Holder::mesh_type::tags;
  if constexpr (g.use.role == axis_role::sharded && g.use.halo > 0)
    return std::type_identity<
        typename halo_of_lists<g.use.dim, g.use.halo, decltype(items_for<Holder, G, Is>())...>::type>{};
  else if constexpr (g.use.role == axis_role::sharded && g.only_balanced)
    return std::type_identity<shard<g.use.dim, typename list_at<g.axes[Is], tags>::type...>>{};
  else if constexpr (g.use.role == axis_role::sharded)
    return std::type_identity<typename shard_of_lists<g.use.dim, decltype(items_for<Holder, G, Is>())...>::type>{};
  else if constexpr (g.use.role == axis_role::identical)
    return std::type_identity<identical<typename list_at<g.axes[Is], tags>::type...>>{};
  else if constexpr (g.use.role == axis_role::varying)
    return std::type_identity<varying<typename list_at<g.axes[Is], tags>::type...>>{};
  else
    return std::type_identity<partial<typename list_at<static_cast<std::size_t>(g.use.op), typename Holder::ops>::type,
                                      typename list_at<g.axes[Is], tags>::type...>>{};
}
template <class Holder, std::size_t... G>
constexpr auto layout_for(std::index_sequence<G...>) {
  return std::type_identity<basic_layout<typename Holder::mesh_type,
                                         typename decltype(placement_for<Holder, G>(
                                             std::make_index_sequence<Holder::groups.group[G].count>{}))::type...>>{};
}
template <class Holder>
using layout_from = typename decltype(layout_for<Holder>(std::make_index_sequence<Holder::groups.count>{}))::type;

// The table of a canonical layout with its operators numbered as in `Ops` and its split policies as in `Splits`, so that
// tables of several layouts compare.
template <class Ops, class Splits, class Layout>
struct joint_table;
template <class Ops, class Splits, class Mesh, class... Ps>
struct joint_table<Ops, Splits, basic_layout<Mesh, Ps...>> {
  static constexpr axis_table<Mesh::rank> value = read_placements<Mesh, Ops, Splits, Ps...>(false).table;
};

// These carry the names of what is wrong into the compiler's message; the text of the assertion says what to change.
template <bool Ok, class... Names>
struct layout_names_each_axis_once {
  static constexpr bool value = Ok;
};
template <bool Ok, class... Names>
inline constexpr bool mesh_has_axis = Ok;
template <bool Ok, class... Names>
inline constexpr bool layout_placement_is_valid = Ok;
template <bool Ok, class Mesh>
inline constexpr bool is_mesh_of_layout = Ok;

struct no_name {};
template <bool Found, std::size_t At, class... Ts>
constexpr auto name_at() {
  if constexpr (Found)
    return std::type_identity<type_at<At, Ts...>>{};
  else
    return std::type_identity<no_name>{};
}
template <class P>
struct axes_in {
  using type = type_list<>;
};
template <placement P>
struct axes_in<P> {
  using type = typename P::axes;
};
template <bool Found, std::size_t At, class... Ts>
constexpr auto axis_at(type_list<Ts...>) {
  return name_at<Found, At, Ts...>();
}

// One error for the first mistake. In a function: a class whose own assertion fails is no type any more for clang, and
// each use of the layout would be an error of its own.
template <layout_problem problem, std::size_t At, std::size_t Axis, class Mesh, class... Ps>
consteval bool refuse_layout() {
  using culprit = type_at<At, Ps...>;
  using culprit_axis =
      typename decltype(axis_at < problem == layout_problem::axis_twice || problem == layout_problem::unknown_axis ||
                            problem == layout_problem::other_parts,
                        Axis > (typename axes_in<culprit>::type{}))::type;

  static_assert(layout_placement_is_valid<(problem != layout_problem::not_a_placement), culprit>,
                "heddle: layout<Mesh, ...>: every argument after the mesh must be shard<dim, axes...>, halo<dim, "
                "width, axes...>, "
                "partial<op, axes...>, replicate<axes...>, identical<axes...> or varying<axes...>");
  static_assert(
      layout_placement_is_valid<(problem != layout_problem::negative_dim), culprit>,
      "heddle: shard<dim, axes...>: the dimension must not be negative; dimensions count from 0, the major one");
  static_assert(layout_placement_is_valid<(problem != layout_problem::no_axis), culprit>,
                "heddle: a placement names no mesh axis; name at least one, or leave the placement out");
  static_assert(
      layout_placement_is_valid<(problem != layout_problem::dim_twice), culprit>,
      "heddle: a layout splits one dimension in two shard<> placements; write one shard<dim, major, minor>, because "
      "the order of the axes matters");
  static_assert(layout_placement_is_valid<(problem != layout_problem::two_operators), culprit>,
                "heddle: a layout holds partial values under two operators, whose order would change the result; use "
                "one operator, "
                "or reduce one of them first");
  static_assert(layout_placement_is_valid<(problem != layout_problem::order_matters), culprit>,
                "heddle: partial<op, axes...>: the operator must be commutative, because axes are combined in any "
                "order; if it is, "
                "declare static constexpr bool commutative = true in it");
  static_assert(layout_placement_is_valid<(problem != layout_problem::policy_after_axes), culprit>,
                "heddle: shard<dim, ...>: a split policy comes last, where it does nothing; a policy holds for the "
                "axes after it, "
                "so write it before them: shard<1, split::zigzag, cp>");
  static_assert(layout_placement_is_valid<(problem != layout_problem::negative_width), culprit>,
                "heddle: halo<dim, width, axes...>: the width must not be negative; it counts elements on either side");
  static_assert(layout_placement_is_valid<(problem != layout_problem::halo_policy), culprit>,
                "heddle: halo<dim, width, policy, axes...>: a halo surrounds one interval, but the policy deals out "
                "several or pads them; name a policy with intervals, such as split::balanced, ceil or ragged");
  static_assert(
      layout_placement_is_valid<(problem != layout_problem::other_parts), culprit_axis, culprit, Mesh>,
      "heddle: shard<dim, policy, axes...>: the policy gives another number of parts than the axis has ranks; "
      "give one size per rank");
  static_assert(
      mesh_has_axis<(problem != layout_problem::unknown_axis), Mesh, culprit_axis>,
      "heddle: a layout names an axis that its mesh does not have; name one of the mesh's axes, or add the axis to "
      "the mesh");
  static_assert(
      layout_names_each_axis_once<(problem != layout_problem::axis_twice), culprit_axis>::value,
      "heddle: a layout uses one mesh axis twice; an axis can do one thing to a tensor, so remove one of its uses");
  return true;
}

template <layout_problem problem, std::size_t At, std::size_t Axis, class Mesh, class... Ps>
inline constexpr bool is_layout = refuse_layout<problem, At, Axis, Mesh, Ps...>();
template <std::size_t At, std::size_t Axis, class Mesh, class... Ps>
inline constexpr bool is_layout<layout_problem::none, At, Axis, Mesh, Ps...> = true;
template <class Mesh>
constexpr bool refuse_mesh_of_layout() {
  static_assert(is_mesh_of_layout<mesh_like<Mesh>, Mesh>,
                "heddle: layout<Mesh, ...>: the first argument must be a mesh<...> type");
  return true;
}

template <bool SkipUnknown, class Mesh, class... Ps>
struct canonical_layout {
  static_assert(refuse_mesh_of_layout<Mesh>());
  using type = basic_layout<mesh<>>;
};
template <bool SkipUnknown, mesh_like Mesh, class... Ps>
struct canonical_layout<SkipUnknown, Mesh, Ps...> {
  using mesh_type = Mesh;
  using ops = joined_lists<typename op_of_placement<Ps>::type...>;
  using splits = joined_lists<type_list<split::balanced>, typename splits_of_placement<Ps>::type...>;
  static constexpr auto spelled = read_placements<Mesh, ops, splits, Ps...>(SkipUnknown);
  static constexpr layout_problem problem = spelled.problem;
  static_assert(is_layout<problem, spelled.placement, spelled.axis, Mesh, Ps...>);

  static constexpr axis_table<Mesh::rank> table =
      problem == layout_problem::none ? spelled.table : axis_table<Mesh::rank>{};
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<canonical_layout>;
};

}  // namespace detail
}  // namespace heddle::inline v0

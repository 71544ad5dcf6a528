// heddle/layout/gradient.hpp: the layout of a gradient, from the layout of the value it belongs to.
#pragma once

#include <heddle/layout/layout.hpp>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

template <class Axis>
struct over_axis;

template <bool Found, std::size_t At, class Layout>
using axis_of_layout = over_axis<typename decltype(axis_at<Found, At>(typename Layout::mesh_type::tags{}))::type>;

// These carry layout and axis into the compiler's message; the assertion's text says what to change.
template <bool Ok, class... Names>
inline constexpr bool gradient_is_defined = Ok;
template <bool Ok, class... Names>
struct loss_is_one_number {
  static constexpr bool value = Ok;
};
// What an axis does that holds terms of a sum: the first operator of a gradient's layout is plus.
constexpr axis_use sum_of_ranks() noexcept {
  axis_use use;
  use.role = axis_role::partial;
  use.op = 0;
  return use;
}

// Axis by axis: split stays split, identical and varying stay, copies and sums change places.
template <class Layout>
struct dual_layout {
  using mesh_type = typename Layout::mesh_type;
  using ops = type_list<plus>;
  using splits = typename Layout::splits;
  static constexpr std::size_t axes = mesh_type::rank;
  static constexpr auto extents = extents_or_unknown<mesh_type>(typename mesh_type::tags{});
  // The first axis of more than one rank over which values are partial; `axes` if there is none.
  static constexpr std::size_t first_partial = [] {
    std::size_t a = 0;
    while (a < axes && (extents[a] == 1 || Layout::table.use[a].role != axis_role::partial)) ++a;
    return a;
  }();
  static constexpr bool sums = [] {
    if constexpr (first_partial < axes)
      return std::is_same_v<typename list_at<0, typename Layout::ops>::type, plus>;
    else
      return true;
  }();
  static constexpr std::size_t partial_axis = first_partial < axes ? first_partial : 0;
  static_assert(gradient_is_defined<!Layout::has_halo, Layout>,
                "heddle: dual<layout>: a halo holds copies of what other ranks own, whose gradients no layout sums; "
                "take the dual of without_halo<layout>, and send gradients of the copies to their owners");
  static_assert(
      gradient_is_defined<sums, axis_of_layout<!sums, partial_axis, Layout>, Layout>,
      "heddle: dual<layout>: partial values under another operator than plus have a gradient only through replicated; "
      "redistribute the tensor to replicated or identical over this axis (all_reduce), and take the dual of that");
  static constexpr axis_table<axes> table = [] {
    axis_table<axes> t = Layout::table;
    if (!sums || Layout::has_halo) return axis_table<axes>{};
    for (std::size_t a = 0; a < axes; ++a) {
      axis_use& u = t.use[a];
      if (u.role == axis_role::partial) {
        u = {};
      } else if (u.role == axis_role::replicated) {
        u = sum_of_ranks();
      }
    }
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<dual_layout>;
};

template <bool Ok, class... Names>
inline constexpr bool reduction_is_due = Ok;

// The layout with some partial axes replicated.
template <class Layout, class... Axes>
struct reduced_layout : in_words_of<Layout> {
  static constexpr bool ok = (Layout::template is_partial_on<Axes> && ...);
  template <class Axis>
  using refused = std::conditional_t<Layout::template is_partial_on<Axis>, type_list<>, type_list<over_axis<Axis>>>;
  static_assert(
      reduction_is_due<ok, joined_lists<refused<Axes>...>, Layout>,
      "heddle: reduced<layout, axes...>: the layout is not partial over an axis, so there is nothing to combine; "
      "name only axes of the mesh over which it is partial");
  static constexpr auto table = [] {
    auto t = Layout::table;
    if constexpr (ok) ((t.use[Layout::mesh_type::template position<Axes>] = {}), ...);
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<reduced_layout>;
};

// The layout with all partial axes replicated.
template <class Layout>
struct settled_layout : in_words_of<Layout> {
  static constexpr auto table = [] {
    auto t = Layout::table;
    for (axis_use& u : t.use)
      if (u.role == axis_role::partial) u = {};
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<settled_layout>;
};

enum class loss_problem : unsigned char { none, split, copies, varies, not_a_sum };

// The first axis along which a layout cannot be a loss's. Axes of one rank do nothing.
template <class Layout>
struct loss_check {
  using mesh_type = typename Layout::mesh_type;
  struct result {
    loss_problem problem = loss_problem::none;
    std::size_t axis = 0;
  };
  template <class... Tags>
  static constexpr result find(type_list<Tags...>) {
    constexpr std::array<int, sizeof...(Tags)> extents{mesh_type::template axis_of<Tags>::fixed_size...};
    for (std::size_t a = 0; a < sizeof...(Tags); ++a) {
      if (extents[a] == 1) continue;
      switch (Layout::table.use[a].role) {
        case axis_role::sharded:
          return {loss_problem::split, a};
        case axis_role::replicated:
          return {loss_problem::copies, a};
        case axis_role::varying:
          return {loss_problem::varies, a};
        case axis_role::partial:
          if (!is_sum()) return {loss_problem::not_a_sum, a};
          break;
        case axis_role::identical:
          break;
      }
    }
    return {};
  }
  static constexpr bool is_sum() {
    if constexpr (Layout::has_partial)
      return std::is_same_v<typename list_at<0, typename Layout::ops>::type, plus>;
    else
      return true;
  }
  static constexpr result found = find(typename mesh_type::tags{});
  static constexpr bool ok = found.problem == loss_problem::none;
};

template <class Layout>
struct seed_of_loss {
  using check = loss_check<Layout>;
  using axis_name = axis_of_layout<!check::ok, check::found.axis, Layout>;
  template <loss_problem P>
  using without = loss_is_one_number<check::found.problem != P, axis_name, Layout>;
  static_assert(without<loss_problem::split>::value,
                "heddle: seed_gradient<loss>: an axis splits the loss, but a loss is one number; sum the dimension it "
                "splits, which "
                "leaves the loss partial<plus> over the axis");
  static_assert(
      without<loss_problem::copies>::value,
      "heddle: seed_gradient<loss>: each rank along an axis has a copy of the loss to differentiate, so every gradient "
      "would "
      "be counted once per copy; all_reduce to identical<axis> instead of replicated, or leave it partial<plus>");
  static_assert(
      without<loss_problem::varies>::value,
      "heddle: seed_gradient<loss>: each rank along an axis has a loss of its own, so a reduction over it is missing; "
      "combine "
      "the ranks' contributions (partial<plus>, or all_reduce to identical<axis>) before the loss is differentiated");
  static_assert(without<loss_problem::not_a_sum>::value,
                "heddle: seed_gradient<loss>: the loss is partial under another operator than plus; redistribute it to "
                "identical over "
                "this axis (all_reduce) first");
  static constexpr auto pick() {
    if constexpr (check::ok)
      return std::type_identity<typename dual_layout<Layout>::type>{};
    else
      return std::type_identity<Layout>{};
  }
  using type = typename decltype(pick())::type;
};

}  // namespace detail

/// The layout of the gradient of a tensor of layout `L`, axis by axis:
///
///     the value is          its gradient is
///     shard<d>              shard<d>, by the same policy: each rank's elements are its own
///     replicated            partial<plus>: each copy was used on its own, and the uses add up
///     partial<plus>         replicated: each contribution went into the same sum
///     identical             identical: the copies are one value, used once
///     varying               varying
///
/// An axis of one rank is never a mistake. A product of a varying activation varies, and so does what it makes of the
/// gradient of a replicated weight, which should be `partial<plus>`: whether the ranks' losses are terms of one sum only
/// the program knows. If they are, `assume<dual<weight>>` says so.
/// `dual<dual<L>>` is `L`. A redistribution from `A` to `B` runs backward as one from `dual<B>` to `dual<A>`.
/// Errors (at compile time): values that are partial under another operator than plus; halos.
/// Source: spmd types (invariant, replicated, varying, partial) and JAX's unreduced types; the f and g operators of Shoeybi et
/// al. 2019, arXiv:1909.08053, section 3, are the case of one axis.
template <layout_like L>
using dual = typename detail::dual_layout<L>::type;

/// Layouts a loss may have when it is differentiated: along each axis of more than one rank it is a sum of the ranks' parts
/// (`partial<plus>`: data axes) or one computation that all ranks repeat (`identical`: model axes).
template <class L>
concept loss_layout = layout_like<L> && detail::loss_check<L>::ok;

/// The layout of the 1 that backward starts from: the dual of the loss's layout. All other gradients' layouts follow.
/// Errors (at compile time, naming the axis): a loss that is split, replicated or varying along an axis, or partial under
/// another operator than plus.
template <layout_like L>
using seed_gradient = typename detail::seed_of_loss<L>::type;

/// The layout of `L` after its contributions along these axes have been combined.
template <layout_like L, class... Axes>
using reduced = typename detail::reduced_layout<L, Axes...>::type;

/// The layout of `L` after its contributions along all axes have been combined: that of an optimizer's gradient is
/// `settled<dual<weights>>`.
template <layout_like L>
using settled = typename detail::settled_layout<L>::type;

/// The gradient's layout as an object, for meshes whose extents are known at run time.
template <layout_like L>
constexpr dual<L> dual_of(const L& layout) {
  return dual<L>{layout.mesh()};
}

}  // namespace heddle::inline v0

// heddle/layout/placement.hpp: what one or several mesh axes do to a tensor: split a dimension, hold partial values, or copy.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/core/type_list.hpp>

#include <cstddef>

namespace heddle::inline v0 {

struct placement_kind {};

/// Dimension `Dim` is split over `Axes`, major to minor: the first axis cuts the dimension, the next one cuts each
/// piece. The order is part of the type; `shard<0, dp, tp>` and `shard<0, tp, dp>` are different layouts.
/// Pieces are balanced (`balanced_split`): sizes differ by at most one per cut and may be zero.
template <int Dim, class... Axes>
struct shard {
  using kind = placement_kind;
  static constexpr int dim = Dim;
  using axes = type_list<Axes...>;
};

/// Each rank along `Axes` holds a full-sized contribution; the logical value is their combination under `Op`.
/// `Op` is a commutative monoid (`plus`, `multiplies`, `maximum`, `minimum`, or one of the user's own). A layout has at most
/// one operator: of a sum of maxima and a maximum of sums, the order would matter.
template <class Op, class... Axes>
struct partial {
  using kind = placement_kind;
  using op = Op;
  using axes = type_list<Axes...>;
};

/// Each rank along `Axes` holds the same values. This is what an axis does that a layout does not name, so it drops out
/// of the canonical type; spelling it documents intent and checks that the mesh has the axis.
template <class... Axes>
struct replicate {
  using kind = placement_kind;
  using axes = type_list<Axes...>;
};

namespace detail {

enum class axis_role : unsigned char { replicated, sharded, partial };

// What one mesh axis does in a layout. `level` counts the axes that split the same dimension before this one.
struct axis_use {
  axis_role role = axis_role::replicated;
  int dim = -1;
  int level = -1;
  int op = -1;  // position in the layout's list of operators

  friend constexpr bool operator==(const axis_use&, const axis_use&) = default;
};

// A layout as a value: one entry per mesh axis, in mesh order.
template <std::size_t Axes>
struct axis_table {
  axis_use use[Axes == 0 ? 1 : Axes]{};

  friend constexpr bool operator==(const axis_table&, const axis_table&) = default;
};

template <class P>
inline constexpr bool is_shard = false;
template <int Dim, class... Axes>
inline constexpr bool is_shard<shard<Dim, Axes...>> = true;
template <class P>
inline constexpr bool is_partial = false;
template <class Op, class... Axes>
inline constexpr bool is_partial<partial<Op, Axes...>> = true;
template <class P>
inline constexpr bool is_replicate = false;
template <class... Axes>
inline constexpr bool is_replicate<replicate<Axes...>> = true;

template <class P>
inline constexpr bool is_placement = is_shard<P> || is_partial<P> || is_replicate<P>;

template <std::size_t At, class List>
struct list_at;
template <std::size_t At, class... Ts>
struct list_at<At, type_list<Ts...>> {
  using type = type_at<At, Ts...>;
};

template <class T, class List>
inline constexpr std::size_t list_index = 0;
template <class T, class... Ts>
inline constexpr std::size_t list_index<T, type_list<Ts...>> = index_of<T, Ts...>;

// The operators of a list of placements, in order.
template <class P>
struct op_of_placement {
  using type = type_list<>;
};
template <class Op, class... Axes>
struct op_of_placement<partial<Op, Axes...>> {
  using type = type_list<Op>;
};
template <class... Ts, class... Us>
type_list<Ts..., Us...> operator+(type_list<Ts...>, type_list<Us...>);
template <class... Lists>
struct join_lists {
  using type = decltype((type_list<>{} + ... + Lists{}));
};
template <class... Lists>
using joined = typename join_lists<Lists...>::type;

}  // namespace detail

/// `shard<...>`, `partial<...>` or `replicate<...>`.
template <class P>
concept placement = detail::is_placement<P>;

}  // namespace heddle::inline v0

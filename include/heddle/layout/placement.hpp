// heddle/layout/placement.hpp: placements over mesh axes: split, halo, partial, replicated.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/core/type_name.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0 {

/// The kind of placements: what a mesh axis does to a tensor.
struct placement_kind {};

namespace detail {
template <class T>
inline constexpr bool is_split_policy = false;
template <split_policy P>
inline constexpr bool is_split_policy<P> = true;

// The axes among the items of a `shard`, and for each the policy named last before it.
template <class Policy, class Axes, class Policies, class... Items>
struct read_items {
  using axes = Axes;
  using policies = Policies;
};
template <class Policy, class... Axes, class... Policies, class Item, class... Rest>
struct read_items<Policy, type_list<Axes...>, type_list<Policies...>, Item, Rest...>
    : read_items<Policy, type_list<Axes..., Item>, type_list<Policies..., Policy>, Rest...> {};
template <class Policy, class... Axes, class... Policies, split_policy Item, class... Rest>
struct read_items<Policy, type_list<Axes...>, type_list<Policies...>, Item, Rest...>
    : read_items<Item, type_list<Axes...>, type_list<Policies...>, Rest...> {};

template <class... Axes>
struct placement_over {
  using kind = placement_kind;
  using axes = type_list<Axes...>;
};
}  // namespace detail

/// Dimension `Dim` is split over the axes among `Items`, major to minor: the first axis cuts the dimension, the next
/// one cuts each piece. The order is part of the type; `shard<0, dp, tp>` and `shard<0, tp, dp>` are different layouts.
/// A split policy among the items holds for the axes after it; before the first one it is `split::balanced`: `shard<1,
/// split::zigzag, cp, split::balanced, tp>`. Parts may be empty.
template <int Dim, class... Items>
struct shard {
  using kind = placement_kind;
  static constexpr int dim = Dim;
  static constexpr std::int64_t width = 0;
  using items = type_list<Items...>;
  using axes = typename detail::read_items<split::balanced, type_list<>, type_list<>, Items...>::axes;
  /// One policy per axis.
  using policies = typename detail::read_items<split::balanced, type_list<>, type_list<>, Items...>::policies;
};

/// As `shard<Dim, Items...>`, and each rank holds up to `Width` elements on either side of its block too, copies of what
/// other ranks own: fewer at the ends of the dimension, none around an empty block. With halos of several dimensions a rank
/// holds the product of the intervals, corners included. The policies must give intervals without padding. Width 0 is `shard`.
/// Redistribute from a `shard` to get the halo, to `without_halo<L>` to drop it; `halo_exchange` refreshes it in place.
/// Units: `Width` in elements.
/// Source: ghost cells and overlap areas of HPF-2's SHADOW directive; PETSc's DMDA.
template <int Dim, std::int64_t Width, class... Items>
struct halo {
  using kind = placement_kind;
  static constexpr int dim = Dim;
  static constexpr std::int64_t width = Width;
  using items = type_list<Items...>;
  using axes = typename shard<Dim, Items...>::axes;
  /// One policy per axis.
  using policies = typename shard<Dim, Items...>::policies;
};

/// Each rank along `Axes` holds a full-sized contribution; the logical value is their combination under `Op`. `Op` is a
/// commutative monoid (`plus`, `multiplies`, `maximum`, `minimum`, or one of the user's own). A layout has at most one
/// operator: of a sum of maxima and a maximum of sums, the order would matter.
template <class Op, class... Axes>
struct partial : detail::placement_over<Axes...> {
  using op = Op;
};

/// Each rank along `Axes` holds the same values. This is what an axis does that a layout does not name, so it drops out
/// of the canonical type; spelling it documents intent and checks that the mesh has the axis.
template <class... Axes>
struct replicate : detail::placement_over<Axes...> {};

/// The ranks along `Axes` hold the same value because they do the same computation: one logical value, as a parameter
/// kept equal on every rank or a loss. Where replicated values may be used differently by each rank, so that their
/// gradients must be summed, the gradient of an identical value is identical again.
/// Source: "invariant" values of spmd types and JAX; Megatron-LM's f and g operators, arXiv:1909.08053, section 3.
template <class... Axes>
struct identical : detail::placement_over<Axes...> {};

/// Each rank along `Axes` holds values of its own that do not add up to one tensor: scratch, statistics, ragged
/// batches. Nothing converts them; only code that knows their meaning can (`assume`).
template <class... Axes>
struct varying : detail::placement_over<Axes...> {};

namespace detail {

// A split policy as a value: the same arithmetic for types and for tables of layouts made at run time.
struct split_functions {
  using count = std::int64_t;
  count (*size)(count n, count p, count r) noexcept;
  count (*owner)(count n, count p, count global) noexcept;
  count (*to_local)(count n, count p, count global) noexcept;
  count (*to_global)(count n, count p, count r, count local) noexcept;
  count (*run)(count n, count p, count r, count local) noexcept;
  count (*stored)(count n, count p, count r) noexcept;
  bool (*fits)(count n, count p) noexcept;
  bool contiguous;
  bool pads;
  std::int64_t parts;  // how many it makes, 0: as many as the axis has ranks
  bool any_extent;     // whether it cuts any number of elements: given sizes fit one only
  bool keeps_one;      // whether an axis of one rank changes nothing
  std::string_view name;
};
template <class P>
constexpr bool policy_pads() {
  if constexpr (requires { P::pads; })
    return P::pads;
  else
    return false;
}
template <class P>
constexpr std::int64_t policy_parts() {
  if constexpr (requires { P::parts; })
    return P::parts;
  else
    return 0;
}
template <class P>
constexpr bool policy_fits_any_extent() {
  return policy_parts<P>() == 0 && P::fits(0, 2) && P::fits(1, 2) && P::fits(7, 3);
}
// Whether the only part of one is the whole, in its order and without padding; tried for some sizes.
template <class P>
constexpr bool policy_keeps_one_part() {
  for (std::int64_t n : {0, 1, 2, 3, 4, 5, 6, 7, 8, 13}) {
    if (!P::fits(n, 1)) continue;
    if (P::size(n, 1, 0) != n || P::stored(n, 1, 0) != n) return false;
    for (std::int64_t l = 0; l < n; ++l)
      if (P::to_global(n, 1, 0, l) != l) return false;
  }
  return true;
}
// Through lambdas, because a user's functions need not be noexcept, and nvcc's are host and device.
template <split_policy P>
inline constexpr split_functions functions_of{
    [](std::int64_t n, std::int64_t p, std::int64_t r) noexcept { return P::size(n, p, r); },
    [](std::int64_t n, std::int64_t p, std::int64_t g) noexcept { return P::owner(n, p, g); },
    [](std::int64_t n, std::int64_t p, std::int64_t g) noexcept { return P::to_local(n, p, g); },
    [](std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t l) noexcept { return P::to_global(n, p, r, l); },
    [](std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t l) noexcept { return P::run(n, p, r, l); },
    [](std::int64_t n, std::int64_t p, std::int64_t r) noexcept { return P::stored(n, p, r); },
    [](std::int64_t n, std::int64_t p) noexcept { return P::fits(n, p); },
    P::contiguous,
    policy_pads<P>(),
    policy_parts<P>(),
    policy_fits_any_extent<P>(),
    policy_keeps_one_part<P>(),
    short_type_name<P>()};

}  // namespace detail

/// What a mesh axis is to a tensor of a layout: its ranks have copies, parts of a dimension, terms of a reduction, the same
/// values computed by each (`identical`), or values of their own (`varying`).
enum class axis_role : unsigned char { replicated, sharded, partial, identical, varying };

namespace detail {

// What one mesh axis does in a layout. `level` counts the axes that split the same dimension before this one.
struct axis_use {
  axis_role role = axis_role::replicated;
  int dim = -1;
  int level = -1;
  int op = -1;    // position in the layout's list of operators
  int split = 0;  // position in the layout's list of split policies, of which the first is `balanced`
  const split_functions* how = &functions_of<split::balanced>;
  std::int64_t halo = 0;  // of the dimension: the same for all axes that split it

  friend constexpr bool operator==(const axis_use&, const axis_use&) = default;
};

// Whether the use changes where elements lie even on an axis of one rank.
constexpr bool reorders_one_rank(const axis_use& u) {
  return u.role == axis_role::sharded && !u.how->keeps_one;
}

// A layout as a value: one entry per mesh axis, in mesh order.
template <std::size_t Axes>
struct axis_table {
  axis_use use[Axes == 0 ? 1 : Axes]{};

  friend constexpr bool operator==(const axis_table&, const axis_table&) = default;
};

// Whether it splits a dimension: a halo does too, with a `width`.
template <class P>
inline constexpr bool is_shard = false;
template <int Dim, class... Items>
inline constexpr bool is_shard<shard<Dim, Items...>> = true;
template <int Dim, std::int64_t Width, class... Items>
inline constexpr bool is_shard<halo<Dim, Width, Items...>> = true;
template <class P>
inline constexpr bool is_partial = false;
template <class Op, class... Axes>
inline constexpr bool is_partial<partial<Op, Axes...>> = true;
template <class P>
inline constexpr bool is_replicate = false;
template <class... Axes>
inline constexpr bool is_replicate<replicate<Axes...>> = true;

template <class P>
inline constexpr bool is_identical = false;
template <class... Axes>
inline constexpr bool is_identical<identical<Axes...>> = true;
template <class P>
inline constexpr bool is_varying = false;
template <class... Axes>
inline constexpr bool is_varying<varying<Axes...>> = true;

template <class P>
inline constexpr bool is_placement =
    is_shard<P> || is_partial<P> || is_replicate<P> || is_identical<P> || is_varying<P>;

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
// Their split policies, in order.
template <class P>
struct splits_of_placement {
  using type = type_list<>;
};
template <int Dim, class... Items>
struct splits_of_placement<shard<Dim, Items...>> {
  using type = typename shard<Dim, Items...>::policies;
};
template <int Dim, std::int64_t Width, class... Items>
struct splits_of_placement<halo<Dim, Width, Items...>> {
  using type = typename shard<Dim, Items...>::policies;
};

// The types of a list, each where it is first.
template <class Seen, class List>
struct distinct_types {
  using type = Seen;
};
template <class... Seen, class T, class... Rest>
struct distinct_types<type_list<Seen...>, type_list<T, Rest...>>
    : std::conditional_t<(std::is_same_v<Seen, T> || ...), distinct_types<type_list<Seen...>, type_list<Rest...>>,
                         distinct_types<type_list<Seen..., T>, type_list<Rest...>>> {};
template <class List>
using distinct = typename distinct_types<type_list<>, List>::type;

}  // namespace detail

/// `shard<...>`, `halo<...>`, `partial<...>`, `replicate<...>`, `identical<...>` or `varying<...>`.
template <class P>
concept placement = detail::is_placement<P>;

}  // namespace heddle::inline v0

// heddle/model/folded_sharding.hpp: a sharding over two meshes as one over a fold.
#pragma once

#include <heddle/mesh/folding.hpp>
#include <heddle/model/sharding.hpp>

#include <type_traits>

namespace heddle::inline v0::model {
namespace detail {

template <bool Ok, class Dim, class Axis>
inline constexpr bool axis_is_of_one_mesh = Ok;
// The axes of the folded mesh that make up an axis of one of the two meshes.
template <class Axis, class First, class Second, class Firsts, class Seconds>
struct folded_axes_of;
template <class Axis, class First, class Second, class... A, class... B>
struct folded_axes_of<Axis, First, Second, type_list<A...>, type_list<B...>> {
  template <bool Kept, class Tag>
  using kept = std::conditional_t<Kept, type_list<Tag>, type_list<>>;
  using type = std::conditional_t<
      First::template has<Axis> && Second::template has<Axis>, type_list<Axis>,
      std::conditional_t<First::template has<Axis>,
                         joined_lists<type_list<>, kept<!First::template has<B>, both<Axis, B>>...>,
                         joined_lists<type_list<>, kept<!Second::template has<A>, both<A, Axis>>...>>>;
};
template <class How, class First, class Second>
struct folded_sharding_of;
template <class... S, class First, class Second>
struct folded_sharding_of<sharding<S...>, First, Second> {
  template <class Split, class... Axes>
  static type_list<dim::split<typename Split::dimension, Axes, typename Split::moving>...> splits(type_list<Axes...>);
  template <class... Splits>
  static sharding<Splits...> as_sharding(type_list<Splits...>);
  template <class Split>
  static auto one() {
    using axis = typename Split::axis;
    constexpr bool known = First::template has<axis> || Second::template has<axis>;
    static_assert(axis_is_of_one_mesh<known, typename Split::dimension, axis>,
                  "heddle: folded_sharding: a sharding of two meshes names an axis that neither of them has");
    if constexpr (known)
      return decltype(splits<Split>(
          typename folded_axes_of<axis, First, Second, typename First::tags, typename Second::tags>::type{})){};
    else
      return type_list<>{};
  }
  using type = decltype(as_sharding(joined_lists<type_list<>, decltype(one<S>())...>{}));
};

}  // namespace detail

/// `How` names axes of `First` and `Second`, two meshes over the same ranks; the same over the axes of `folded_mesh<First, Second>`. For
/// mixtures of experts: samples, heads and vocabulary over axes of attention's mesh, `dim::experts` and `dim::ffn` over those of the experts'. Along an axis
/// that neither `dim::experts` nor `dim::ffn` names experts are copies, and their gradients are summed over those of its ranks that have other rows.
/// Split sequences take an axis that makes up one axis of the folded mesh: of the axes beside it in the other mesh all but one have the fixed size 1.
/// Errors: does not compile for an axis that neither mesh has.
/// Source: Liu et al. 2025, arXiv:2504.14960.
template <class How, mesh_like First, mesh_like Second>
using folded_sharding = typename detail::folded_sharding_of<How, First, Second>::type;

}  // namespace heddle::inline v0::model

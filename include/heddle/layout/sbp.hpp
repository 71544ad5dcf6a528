// heddle/layout/sbp.hpp: layouts in OneFlow's spelling: one placement per mesh axis.
#pragma once

#include <heddle/layout/layout.hpp>

#include <cstddef>
#include <type_traits>

/// `sbp::signature<mesh, sbp::S<0>, sbp::B>` is a layout: the first mesh axis splits dimension 0, the second one copies. Where
/// several axes split one dimension, the earlier one cuts first, as in OneFlow; layouts of another order, other operators or
/// other split policies have no such spelling.
/// Source: Yuan et al. 2021, arXiv:2110.15032, section 3.1.
namespace heddle::inline v0::sbp {

/// Split: the axis splits dimension `Dim`.
template <int Dim>
struct S {
  static_assert(Dim >= 0, "heddle: sbp::S<Dim>: Dim counts dimensions from 0");
  static constexpr detail::axis_use use{axis_role::sharded, Dim};
};
/// Broadcast: the ranks along the axis hold the same values.
struct B {
  static constexpr detail::axis_use use{};
};
/// Partial value: the sum over the ranks along the axis is the value.
struct P {
  static constexpr detail::axis_use use{axis_role::partial, -1, -1, 0};
};

}  // namespace heddle::inline v0::sbp

namespace heddle::inline v0 {
namespace detail {

template <class T>
inline constexpr bool is_sbp = std::is_same_v<T, sbp::B> || std::is_same_v<T, sbp::P>;
template <int Dim>
inline constexpr bool is_sbp<sbp::S<Dim>> = true;

template <class Mesh, bool Sound, class... Entries>
struct sbp_layout {
  using mesh_type = Mesh;
  using ops = type_list<plus>;
  using splits = type_list<split::balanced>;
  static constexpr axis_table<Mesh::rank> table = [] {
    axis_table<Mesh::rank> t{{Entries::use...}};
    for (std::size_t a = 0; a < Mesh::rank; ++a) {
      if (t.use[a].role != axis_role::sharded) continue;
      t.use[a].level = 0;
      for (std::size_t b = 0; b < a; ++b)
        if (t.use[b].role == axis_role::sharded && t.use[b].dim == t.use[a].dim) ++t.use[a].level;
    }
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<sbp_layout>;
};
template <class Mesh, class... Entries>
struct sbp_layout<Mesh, false, Entries...> {
  using type = basic_layout<Mesh>;
};

// Carry the entries into the compiler's message.
template <bool Ok, class... Names>
inline constexpr bool sbp_signature_is_valid = Ok;

template <class Mesh, class... Entries>
struct sbp_signature {
  static constexpr bool known = (is_sbp<Entries> && ...);
  static constexpr bool complete = sizeof...(Entries) == Mesh::rank;
  static_assert(sbp_signature_is_valid<known, Entries...>,
                "heddle: sbp::signature: an entry is none of sbp::S<dim>, sbp::B, sbp::P");
  static_assert(sbp_signature_is_valid<(!known || complete), Mesh, Entries...>,
                "heddle: sbp::signature: give one entry per mesh axis, in the order of the mesh");
  using type = typename sbp_layout<Mesh, known && complete, Entries...>::type;
};

}  // namespace detail

namespace sbp {
/// The layout in which each axis of the mesh does what its entry says.
template <mesh_like Mesh, class... Entries>
using signature = typename detail::sbp_signature<Mesh, Entries...>::type;
}  // namespace sbp

}  // namespace heddle::inline v0

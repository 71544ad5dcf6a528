// heddle/layout/halo.hpp: layouts without their halos: the blocks that ranks own.
#pragma once

#include <heddle/layout/layout.hpp>

namespace heddle::inline v0 {
namespace detail {

template <class Layout>
struct layout_without_halo : in_words_of<Layout> {
  static constexpr auto table = [] {
    auto t = Layout::table;
    for (axis_use& u : t.use) u.halo = 0;
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<layout_without_halo>;
};

}  // namespace detail

/// The layout with every `halo` a `shard`: the blocks that ranks own, of which each element is in one. A layout without halos
/// is itself. `without_halo<L>::local_offset(s, rank)` minus `L::local_offset(s, rank)` is where the own block begins in the
/// memory of a part with halos.
template <layout_like L>
using without_halo = typename detail::layout_without_halo<L>::type;

}  // namespace heddle::inline v0

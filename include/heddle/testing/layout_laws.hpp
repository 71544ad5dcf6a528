// heddle/testing/layout_laws.hpp: laws of a layout that need no data: coverage, offsets and owners.
#pragma once

#include <heddle/layout/halo.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/testing/report.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0 {
namespace testing {
namespace detail {

namespace hd = ::heddle::v0::detail;

template <std::size_t Rank>
constexpr std::array<std::int64_t, Rank> index_at(std::int64_t flat, const std::array<std::int64_t, Rank>& extents) {
  std::array<std::int64_t, Rank> index{};
  for (std::size_t d = Rank; d-- > 0;) {
    index[d] = flat % extents[d];
    flat /= extents[d];
  }
  return index;
}
template <std::size_t Rank>
constexpr std::int64_t flat_at(const std::array<std::int64_t, Rank>& index,
                               const std::array<std::int64_t, Rank>& extents) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < Rank; ++d) flat = flat * extents[d] + index[d];
  return flat;
}
template <std::size_t Rank>
constexpr std::int64_t product(const std::array<std::int64_t, Rank>& extents) {
  std::int64_t n = 1;
  for (const std::int64_t e : extents) n *= e;
  return n;
}

// The elements that a rank holds, without padding.
template <class L, std::int64_t... E>
constexpr std::array<std::int64_t, sizeof...(E)> valid_extents(const L& layout, const shape<E...>& s, int rank) {
  if constexpr (requires { layout.valid_shape(s, rank); })
    return layout.valid_shape(s, rank).extents();
  else
    return layout.local_shape(s, rank).extents();
}

// The ranks that hold each element, and how many of them hold something of their own.
struct holder_counts {
  std::int64_t all = 1;
  std::int64_t primary = 1;
  bool only_copies = true;  // false where ranks hold values without a common meaning
};
template <class L>
constexpr holder_counts holders_of(const L& layout) {
  holder_counts n;
  const auto extents = layout.mesh().extents();
  for (std::size_t a = 0; a < extents.size(); ++a) {
    const auto role = L::table.use[a].role;
    if (role == axis_role::sharded) continue;
    n.all *= extents[a];
    if (role == axis_role::partial) n.primary *= extents[a];
    n.only_copies = n.only_copies && role != axis_role::varying;
  }
  return n;
}

}  // namespace detail

namespace detail {

// Whether the rank owns an element that is no further away, in any dimension, than the halo there.
template <class L, std::int64_t... E>
constexpr bool near_own_block(const L& layout, const shape<E...>& s, int rank,
                              const std::array<std::int64_t, sizeof...(E)>& index) {
  const without_halo<L> blocks{layout.mesh()};
  std::array<std::int64_t, sizeof...(E)> width{};
  for (const hd::axis_use& u : L::table.use)
    if (u.role == axis_role::sharded && u.dim < static_cast<int>(sizeof...(E)))
      width[static_cast<std::size_t>(u.dim)] = u.halo;
  for (std::int64_t at = 0; at < s.size(); ++at) {
    const auto own = index_at(at, s.extents());
    if (!blocks.owns(s, rank, own)) continue;
    bool close = true;
    for (std::size_t d = 0; d < sizeof...(E); ++d) {
      const std::int64_t away = own[d] < index[d] ? index[d] - own[d] : own[d] - index[d];
      close = close && away <= width[d];
    }
    if (close) return true;
  }
  return false;
}

}  // namespace detail

/// Law 1 of layouts with halos, for one layout and shape: the blocks without halos are a partition; a rank holds an element if
/// it owns one no further away in any dimension than the halo's width there, and nothing else; the owner is that of the blocks;
/// to_local and to_global are inverse; each rank holds what its local shape says.
template <layout_like L, std::int64_t... E>
constexpr finding covers_with_halos(const L& layout, const shape<E...>& s) {
  const auto extents = s.extents();
  const std::int64_t size = s.size();
  const int ranks = layout.mesh().size();
  const without_halo<L> blocks{layout.mesh()};
  finding f;
  const auto wrong = [&](problem what, std::int64_t rank, std::int64_t at, std::int64_t expected, std::int64_t got) {
    return finding{what, size, ranks, rank, at, expected, got, f.cases};
  };
  for (int r = 0; r < ranks; ++r) {
    const auto part = layout.part(s, r);
    std::int64_t held = 0;
    for (std::int64_t at = 0; at < size; ++at, ++f.cases) {
      const auto index = detail::index_at(at, extents);
      const bool want = detail::near_own_block(layout, s, r, index), has = layout.owns(s, r, index);
      if (want != has || part.holds(index) != has)
        return wrong(problem::another_number_of_holders, r, at, want ? 1 : 0, has ? 1 : 0);
      if (!has) continue;
      ++held;
      const auto place = layout.to_local(s, r, index);
      if (place != part.to_local(index) || part.to_global(place) != index)
        return wrong(problem::in_another_place, r, at, detail::flat_at(place, extents), -1);
      const std::int64_t back = detail::flat_at(layout.to_global(s, r, place), extents);
      if (back != at) return wrong(problem::to_global_does_not_undo_to_local, r, at, at, back);
    }
    const std::int64_t local = detail::product(layout.local_shape(s, r).extents());
    if (held != local || part.size() != local || layout.local_size(s, r) != local)
      return wrong(problem::another_number_of_elements, r, -1, held, local);
  }
  for (std::int64_t at = 0; at < size; ++at) {
    const auto index = detail::index_at(at, extents);
    if (layout.owner(s, index) != blocks.owner(s, index))
      return wrong(problem::owner_is_not_the_lowest_holder, -1, at, blocks.owner(s, index), layout.owner(s, index));
  }
  ++f.cases;
  return f;
}

/// Law 1, partition, for one layout and shape: every element has as many holders as there are ranks along the axes that do
/// not split, one primary per contribution, the owner is the lowest holder; owner, to_local and to_global are inverse; each
/// rank holds what its local shape says. Of a layout with halos: of its blocks, and `covers_with_halos`.
template <layout_like L, std::int64_t... E>
constexpr finding partition(const L& layout, const shape<E...>& s) {
  if constexpr (L::has_halo) {
    const finding blocks = partition(without_halo<L>{layout.mesh()}, s);
    return blocks.ok() ? covers_with_halos(layout, s) : blocks;
  }
  const auto extents = s.extents();
  const std::int64_t size = s.size();
  const int ranks = layout.mesh().size();
  const auto want = detail::holders_of(layout);
  finding f;
  const auto wrong = [&](problem what, std::int64_t rank, std::int64_t at, std::int64_t expected, std::int64_t got) {
    return finding{what, size, ranks, rank, at, expected, got, f.cases};
  };
  for (int r = 0; r < ranks; ++r) {
    const auto local = detail::valid_extents(layout, s, r);
    if (layout.local_size(s, r) < detail::product(local))
      return wrong(problem::stored_less_than_size, r, -1, detail::product(local), layout.local_size(s, r));
    std::int64_t held = 0;
    for (std::int64_t at = 0; at < size; ++at) held += layout.owns(s, r, detail::index_at(at, extents)) ? 1 : 0;
    if (held != detail::product(local))
      return wrong(problem::another_number_of_elements, r, -1, detail::product(local), held);
  }
  for (std::int64_t at = 0; at < size; ++at) {
    const auto index = detail::index_at(at, extents);
    std::int64_t holders = 0, primaries = 0;
    int lowest = -1;
    for (int r = 0; r < ranks; ++r) {
      if (!layout.owns(s, r, index)) continue;
      if (lowest < 0) lowest = r;
      ++holders;
      primaries += layout.is_primary(r) ? 1 : 0;
      const auto place = layout.to_local(s, r, index);
      const auto local = detail::valid_extents(layout, s, r);
      for (std::size_t d = 0; d < sizeof...(E); ++d)
        if (place[d] < 0 || place[d] >= local[d]) return wrong(problem::local_out_of_range, r, at, local[d], place[d]);
      const std::int64_t back = detail::flat_at(layout.to_global(s, r, place), extents);
      if (back != at) return wrong(problem::to_global_does_not_undo_to_local, r, at, at, back);
      ++f.cases;
    }
    if (holders != want.all) return wrong(problem::another_number_of_holders, -1, at, want.all, holders);
    if (want.only_copies && primaries != want.primary)
      return wrong(problem::another_number_of_primaries, -1, at, want.primary, primaries);
    if (layout.owner(s, index) != lowest)
      return wrong(problem::owner_is_not_the_lowest_holder, -1, at, lowest, layout.owner(s, index));
  }
  ++f.cases;
  return f;
}

/// `partition` as a report that names the layout, its mesh and the shape.
template <layout_like L, std::int64_t... E>
[[nodiscard]] report check_partition(const L& layout, const shape<E...>& s) {
  const finding f = partition(layout, s);
  if (f.ok()) return {true, {}, f.cases};
  std::string where = to_string(layout);
  where += ", shape ";
  where += to_string(s);
  return report_of(f, where);
}

/// Whether two layouts give every rank the same part, though they are different types: axes of one rank, merged axes, an
/// order that does not matter. `rank` of the finding is the first that differs, `got` what the second gives it.
template <layout_like A, layout_like B, std::int64_t... E>
constexpr finding same_parts(const A& a, const B& b, const shape<E...>& s) {
  const int ranks = a.mesh().size();
  finding f{problem::none, s.size(), ranks};
  if (b.mesh().size() != ranks)
    return {problem::another_number_of_holders, s.size(), ranks, -1, -1, ranks, b.mesh().size()};
  for (int r = 0; r < ranks; ++r)
    for (std::int64_t at = 0; at < s.size(); ++at, ++f.cases) {
      const auto index = detail::index_at(at, s.extents());
      const bool here = a.owns(s, r, index), there = b.owns(s, r, index);
      if (here != there)
        return {problem::held_in_one_layout_only, s.size(), ranks, r, at, here ? 1 : 0, there ? 1 : 0, f.cases};
      if (here && a.to_local(s, r, index) != b.to_local(s, r, index))
        return {problem::in_another_place,
                s.size(),
                ranks,
                r,
                at,
                detail::flat_at(a.to_local(s, r, index), s.extents()),
                detail::flat_at(b.to_local(s, r, index), s.extents()),
                f.cases};
    }
  ++f.cases;
  return f;
}

}  // namespace testing
}  // namespace heddle::inline v0

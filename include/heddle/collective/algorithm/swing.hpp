// heddle/collective/algorithm/swing.hpp: the Swing algorithm, for rings and tori.
#pragma once

#include <heddle/collective/algorithm/dimensions.hpp>
#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/power_of_two.hpp>
#include <heddle/collective/rounds_reverse.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

/// Whether partners are mutual: among ranks of an even number, or alone.
constexpr bool swings(int ranks) noexcept {
  return ranks == 1 || (ranks >= 2 && ranks % 2 == 0);
}

// Refused here and not in the class, so that nothing else is said about a class that is wrong.
template <int... Extents>
consteval bool can_swing() {
  constexpr bool ok = (swings(Extents) && ...);
  static_assert(ok, "heddle: swing needs a torus whose extents are even, or 1");
  return ok;
}

/// How far the partner of step s is: 1, -1, 3, -5, 11, -21, ... = (1 - (-2)^(s+1)) / 3.
constexpr int swing_distance(int s) noexcept {
  int power = -2;
  for (int i = 0; i < s; ++i) power *= -2;
  return (1 - power) / 3;
}

/// Who meets whom: even coordinates go by the distance, odd ones against it, and the other way round where `mirrored`.
/// Steps take the dimensions by turns from `first` on, leaving out those whose ranks have all met.
template <class Grid>
constexpr std::vector<std::vector<int>> swing_partners(int first, bool mirrored) {
  int left = 0;
  std::array<int, static_cast<std::size_t>(Grid::count)> done{};
  for (int d = 0; d < Grid::count; ++d) left += ceil_log2(Grid::extent(d));
  std::vector<std::vector<int>> partners;
  for (int d = first; left > 0; d = (d + 1) % Grid::count) {
    int& s = done[static_cast<std::size_t>(d)];
    if (s == ceil_log2(Grid::extent(d))) continue;
    std::vector<int> partner;
    for (int r = 0; r < Grid::ranks; ++r) {
      const int x = Grid::coordinate(r, d);
      partner.push_back(Grid::with(r, d, (x % 2 == 0) != mirrored ? x + swing_distance(s) : x - swing_distance(s)));
    }
    partners.push_back(static_cast<std::vector<int>&&>(partner));
    ++s;
    --left;
  }
  return partners;
}

/// Adds the messages of an all_gather of part `part` in which r meets partners[s][r], the last step first, and gives
/// what the partner lacks. Before step s of the reduce_scatter, which is the reverse, rank r has the blocks of all it
/// will reach in the steps from s on.
constexpr void gather_by_partners(round_builder& rounds, const std::vector<std::vector<int>>& partners, int part) {
  const auto ranks = static_cast<std::size_t>(rounds.ranks());
  std::vector<std::vector<int>> has(ranks);  // ascending
  for (std::size_t r = 0; r < ranks; ++r) has[r].push_back(static_cast<int>(r));
  for (std::size_t s = partners.size(), round = 0; s-- > 0; ++round) {
    std::vector<std::vector<int>> will_have(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const int partner = partners[s][r];
      const auto& there = has[static_cast<std::size_t>(partner)];
      auto& all = will_have[static_cast<std::size_t>(partner)];
      rounds.send(static_cast<int>(round), static_cast<int>(r), partner);
      std::size_t k = 0;
      for (const int block : has[r]) {  // merged, as both lists ascend
        for (; k < there.size() && there[k] < block; ++k) all.push_back(there[k]);
        if (k == there.size() || there[k] != block) {
          rounds.item(block * rounds.parts() + part);
          all.push_back(block);
        }
      }
      for (; k < there.size(); ++k) all.push_back(there[k]);
    }
    has = static_cast<std::vector<std::vector<int>>&&>(will_have);
  }
}

}  // namespace detail

namespace algo {

/// Swing on a ring of an even number of ranks: halving and doubling, but in step s rank r meets r + d(s) if r is even,
/// r - d(s) if it is odd, d = 1, -1, 3, -5, 11, ...: shorter ways than 1, 2, 4, 8, ..., so that messages share fewer
/// links. reduce_scatter takes ceil(log2 p) messages and p - 1 blocks, p/2, p/4, ..., 1 for p = 2^k; all_gather is the
/// same backwards, all_reduce one after the other. For medium vectors on rings and tori. Needs a commutative operator.
///
/// For other even p some ranks would be reached twice: all_gather gives a partner only the blocks it lacks.
/// Source: De Sensi, Bonato, Saam, Hoefler 2024, arXiv:2401.09356.
struct swing : detail::gathers_and_reduces {
  static constexpr std::string_view name = "swing";

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return detail::swings(ranks) && gathers_and_reduces::offers<What>(ranks);
  }

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(comm_operation::all_gather, ranks, root, ranks, 1);
    std::vector<std::vector<int>> partners;
    for (int s = 0; s < detail::ceil_log2(ranks); ++s) {
      const int d = detail::swing_distance(s);
      std::vector<int> partner;
      for (int r = 0; r < ranks; ++r) partner.push_back(((r % 2 == 0 ? r + d : r - d) % ranks + ranks) % ranks);
      partners.push_back(static_cast<std::vector<int>&&>(partner));
    }
    detail::gather_by_partners(rounds, partners, 0);
    return detail::from_all_gather<What>(rounds.take());
  }
};

/// Swing on a torus: steps take the dimensions by turns. Blocks are cut into two parts per dimension: part 2 d begins
/// with dimension d, part 2 d + 1 as well but mirrored, so that all links of a rank carry messages at the same time
/// where the extents are equal. `Extents` are even (or 1), the last varies fastest: rank r of `swing_torus<4, 8>`
/// stands at (r / 8, r % 8).
/// Source: De Sensi, Bonato, Saam, Hoefler 2024, arXiv:2401.09356, the part on torus networks.
template <int... Extents>
struct swing_torus : detail::on_torus<Extents...> {
  static constexpr auto stored_name = detail::name_with("swing_torus", Extents...);
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return detail::can_swing<Extents...>() && detail::on_torus<Extents...>::template offers<What>(ranks);
  }

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    using grid = detail::dimensions<Extents...>;
    if (!detail::can_swing<Extents...>()) return {};
    round_builder rounds(comm_operation::all_gather, ranks, root, ranks, 2 * grid::count);
    for (int d = 0; d < grid::count; ++d)
      for (int mirrored = 0; mirrored < 2; ++mirrored)
        detail::gather_by_partners(rounds, detail::swing_partners<grid>(d, mirrored == 1), 2 * d + mirrored);
    return detail::from_all_gather<What>(rounds.take());
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

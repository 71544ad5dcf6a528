// heddle/collective/algorithm/grid_all_to_all.hpp: all_to_all along rows, then columns, of a grid.
#pragma once

#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace detail {

/// All-to-all over a grid with so many columns; rank = row * columns + column, the last row may be shorter. First every
/// rank gives what is for column j to its row's rank in column j, for a column that its row lacks to a rank of another
/// row; then the ranks of each column exchange.
constexpr round_table two_phase_all_to_all(comm_operation what, int ranks, int root, int columns) {
  round_builder rounds(what, ranks, root, ranks * ranks, 1);
  const int rows = (ranks + columns - 1) / columns;
  // Where rank s leaves what it has for the ranks of column j.
  const auto half_way = [=](int s, int j) {
    const int t = s / columns * columns + j;
    return t < ranks ? t : s % columns % (rows - 1) * columns + j;
  };
  for (int k = 1; k < columns; ++k)
    for (int s = 0; s < ranks; ++s) {
      const int j = (s % columns + k) % columns;
      if (j >= ranks) continue;
      rounds.send(k - 1, s, half_way(s, j));
      for (int d = j; d < ranks; d += columns) rounds.block(s * ranks + d);
    }
  for (int k = 1; k < rows; ++k)
    for (int t = 0; t < ranks; ++t) {
      const int row = (t / columns + k) % rows, j = t % columns, d = row * columns + j;
      if (d >= ranks) continue;
      rounds.send(columns - 2 + k, t, d);
      for (int s = 0; s < ranks; ++s)
        if (half_way(s, j) == t) rounds.block(s * ranks + d);
    }
  return rounds.take();
}

}  // namespace detail

namespace algo {

/// All-to-all over nodes of `PerNode` ranks that lie side by side: inside each node rank (n, i) gives rank (n, j)
/// everything for the ranks (., j), then (n, j) exchanges with (n', j). PerNode + N - 2 messages per rank on N nodes
/// instead of p - 1; the network carries the same bytes in messages PerNode times as long. For short blocks on big
/// nodes.
template <int PerNode>
struct hierarchical_all_to_all : detail::folds_in<fold_order::none> {
  static_assert(PerNode > 0, "heddle: algo::hierarchical_all_to_all<PerNode>: a node has at least one rank");
  static constexpr auto stored_name = detail::name_with("hierarchical_all_to_all", PerNode);
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return What == comm_operation::all_to_all && ranks >= 1 && ranks % PerNode == 0;
  }
  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return detail::two_phase_all_to_all(What, ranks, root, PerNode);
  }
};

/// All-to-all over a square grid of ranks, whatever the network: 2 (sqrt p - 1) messages per rank instead of p - 1,
/// each block sent twice. For short blocks on many ranks. Any number of ranks: where it is not a square the last row is
/// shorter, and its ranks leave blocks for the columns it lacks in other rows.
/// Source: Uhl et al. 2024, KaMPIng, arXiv:2404.05610.
struct grid_all_to_all : detail::folds_on_any_ranks<fold_order::none, comm_operation::all_to_all> {
  static constexpr std::string_view name = "grid_all_to_all";

  /// The square root, rounded up.
  static constexpr int columns(int ranks) {
    int c = 1;
    while (c * c < ranks) ++c;
    return c;
  }

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return detail::two_phase_all_to_all(What, ranks, root, columns(ranks));
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

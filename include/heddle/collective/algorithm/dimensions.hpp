// heddle/collective/algorithm/dimensions.hpp: ranks as points of a grid, for algorithms along it.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>

#include <array>
#include <cstddef>

namespace heddle::inline v0 {
namespace detail {

/// A grid of ranks: the last dimension varies fastest, as in a mesh; every dimension is a ring.
template <int... Extents>
struct dimensions {
  static_assert(sizeof...(Extents) > 0 && ((Extents > 0) && ...),
                "heddle: name the extent of every dimension of the torus, each positive");
  static constexpr int count = static_cast<int>(sizeof...(Extents));
  static constexpr std::array<int, sizeof...(Extents)> extents{Extents...};
  static constexpr int ranks = (1 * ... * Extents);

  static constexpr int extent(int d) noexcept { return extents[static_cast<std::size_t>(d)]; }
  static constexpr int stride(int d) noexcept {
    int n = 1;
    for (int i = d + 1; i < count; ++i) n *= extent(i);
    return n;
  }
  static constexpr int coordinate(int rank, int d) noexcept { return rank / stride(d) % extent(d); }
  /// The rank with this coordinate instead; coordinates are taken modulo the extent.
  static constexpr int with(int rank, int d, int coordinate_there) noexcept {
    const int x = (coordinate_there % extent(d) + extent(d)) % extent(d);
    return rank + (x - coordinate(rank, d)) * stride(d);
  }
};

// An algorithm for all_gather, reduce_scatter and all_reduce of the ranks of such a torus.
template <int... Extents>
struct on_torus : gathers_and_reduces {
  using grid = dimensions<Extents...>;
  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks == grid::ranks && gathers_and_reduces::offers<What>(ranks);
  }
};

}  // namespace detail
}  // namespace heddle::inline v0

// heddle/collective/algorithm/torus.hpp: rings along all dimensions of a torus at once.
#pragma once

#include <heddle/collective/algorithm/dimensions.hpp>
#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/rounds_reverse.hpp>

#include <cstddef>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {
namespace algo {

/// Rings along the dimensions of a torus: reduce_scatter goes over one dimension after the other, each ring on what the
/// one before left; all_gather goes back. On X times Y ranks 2 (X + Y - 2) rounds of all_reduce instead of 2 (X Y - 1),
/// as many bytes as the ring, every message to a neighbour. Blocks are cut into as many parts as there are dimensions,
/// and part i begins with dimension i, so that all dimensions carry messages at the same time where their extents are
/// equal; else parts meet in the longest one.
///
/// `Extents` are those of the torus, the last varies fastest: rank r of `torus<4, 8>` stands at (r / 8, r % 8). For
/// long vectors. Needs a commutative operator.
/// Source: Ying, Kumar, Chen, Wang, Cheng 2018, arXiv:1811.06992; Mikami et al. 2018, arXiv:1811.05233.
template <int... Extents>
struct torus : detail::on_torus<Extents...> {
  static constexpr auto stored_name = detail::name_with("torus", Extents...);
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    using grid = detail::dimensions<Extents...>;
    round_builder rounds(comm_operation::all_gather, ranks, root, ranks, grid::count);
    for (int part = 0; part < grid::count; ++part) {
      std::vector<int> gathered{0};  // the blocks a rank has of one line's block: what the dimensions so far brought
      int first = 0;
      for (int i = grid::count - 1; i >= 0; --i) {
        const int d = (part + i) % grid::count, extent = grid::extent(d);
        for (int k = 0; k < extent - 1; ++k)
          for (int r = 0; r < ranks; ++r) {
            const int x = grid::coordinate(r, d);
            rounds.send(first + k, r, grid::with(r, d, x + 1));
            int corner = grid::with(r, d, x - k);  // where the blocks come from, at 0 in the dimensions gathered
            for (int j = grid::count - 1; j > i; --j) corner = grid::with(corner, (part + j) % grid::count, 0);
            for (const int offset : gathered) rounds.item((corner + offset) * grid::count + part);
          }
        first += extent - 1;
        const std::size_t n = gathered.size();
        for (int x = 1; x < extent; ++x)
          for (std::size_t k = 0; k < n; ++k) gathered.push_back(gathered[k] + x * grid::stride(d));
      }
    }
    return detail::from_all_gather<What>(rounds.take());
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

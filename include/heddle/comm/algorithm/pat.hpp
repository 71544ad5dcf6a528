// heddle/comm/algorithm/pat.hpp: parallel aggregated trees: few rounds, and the farthest peer gets the fewest blocks.
#pragma once

#include <heddle/comm/algorithm/power_of_two.hpp>
#include <heddle/comm/rounds_reverse.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace algo {

/// Parallel aggregated trees. Every block is spread over a binomial tree that begins at its owner: at distance s from
/// the owner it comes from the rank at distance s without its lowest bit. The trees of all blocks are the same,
/// shifted, so that in a round all ranks send 2^k ranks ahead, k = L - 1, ..., 0, and aggregate the blocks of all
/// trees in one message: 1, 2, 4, ... blocks, p - 1 in all (p = 13: 1, 2, 3, 6). Bruck's algorithm sends the longest
/// messages to the farthest ranks, this one the shortest. Any number of ranks; for medium blocks on networks that
/// taper. That is all_gather; reduce_scatter is the same backwards, all_reduce one after the other, and these need a
/// commutative operator.
/// Source: NCCL 2.23, Jeaugey 2025, arXiv:2506.20252 (the fully aggregated form).
struct pat {
  static constexpr std::string_view name = "pat";

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks >= 1 && detail::is_gather_or_reduction<What>;
  }
  template <comm_operation What>
  static constexpr fold_order order = What == comm_operation::all_gather ? fold_order::none : fold_order::any;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(comm_operation::all_gather, ranks, root, ranks, 1);
    int k = 0;
    for (int step = (1 << detail::ceil_log2(ranks)) / 2; step >= 1; step /= 2, ++k)
      for (int r = 0; r < ranks; ++r) {
        rounds.send(k, r, (r + step) % ranks);
        for (int distance = 0; distance + step < ranks; distance += 2 * step)
          rounds.block((r - distance + ranks) % ranks);
      }
    return detail::from_all_gather<What>(rounds.take());
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

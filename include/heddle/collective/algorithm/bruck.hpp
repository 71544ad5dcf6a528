// heddle/collective/algorithm/bruck.hpp: Bruck's algorithm: ceil(log2 p) rounds for any rank count.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds_reverse.hpp>

#include <algorithm>
#include <string_view>

namespace heddle::inline v0::detail {

constexpr round_table bruck_all_to_all(int p, int root) {
  round_builder rounds(comm_operation::all_to_all, p, root, p * p, 1);
  int k = 0;
  for (int step = 1; step < p; step *= 2, ++k)
    for (int r = 0; r < p; ++r) {
      rounds.send(k, r, (r + step) % p);
      for (int way = step; way < p; ++way) {
        if ((way & step) == 0) continue;
        const int source = (r - way % step + p) % p;  // it has gone the lower bits of its way already
        rounds.block(source * p + (source + way) % p);
      }
    }
  return rounds.take();
}

constexpr round_table bruck_all_gather(int p, int root) {
  round_builder rounds(comm_operation::all_gather, p, root, p, 1);
  int k = 0;
  for (int have = 1; have < p; have *= 2, ++k)
    for (int r = 0; r < p; ++r) rounds.send(k, r, (r - have + p) % p).blocks(r, (std::min)(have, p - have));
  return rounds.take();
}

}  // namespace heddle::inline v0::detail

namespace heddle::inline v0::algo {

/// Bruck's algorithms, for small blocks and any number of ranks. In round s all ranks send 2^s ranks away.
///
/// - all_gather: all that is held, at most the blocks still missing there: 1, 2, 4, ... blocks to r - 2^s, the last
///   message the rest; p - 1 blocks in all.
/// - reduce_scatter: the same backwards. all_reduce: one after the other. Need a commutative operator.
/// - all_to_all: a block whose way is d ranks long goes 2^s ranks in the rounds s of the bits of d: p / 2 log2 p blocks
///   in log2 p messages (p = 2^k), instead of p - 1 in p - 1.
///
/// Source: Bruck, Ho, Kipnis, Upfal, Weathersby 1997, IEEE TPDS 8(11).
struct bruck : detail::folds_on_any_ranks<fold_order::any, comm_operation::all_gather, comm_operation::reduce_scatter,
                                          comm_operation::all_reduce, comm_operation::all_to_all> {
  static constexpr std::string_view name = "bruck";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    if constexpr (What == comm_operation::all_to_all)
      return detail::bruck_all_to_all(ranks, root);
    else
      return detail::from_all_gather<What>(detail::bruck_all_gather(ranks, root));
  }
};

}  // namespace heddle::inline v0::algo

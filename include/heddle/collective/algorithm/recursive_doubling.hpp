// heddle/collective/algorithm/recursive_doubling.hpp: recursive doubling, ranks kept in order.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/algorithm/power_of_two.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace detail {

// all_gather among the core ranks, each of which has the block of its number: 1, 2, 4, ... blocks. Returns the first round after these.
constexpr int double_blocks(round_builder& rounds, const core_ranks& core, int round) {
  for (int have = 1; have < core.size; have *= 2, ++round)
    for (int v = 0; v < core.size; ++v)
      rounds.send(round, core.rank(v), core.rank(v ^ have)).blocks(v & ~(have - 1), have);
  return round;
}

}  // namespace detail

namespace algo {

/// Recursive doubling: in round s rank r meets r XOR 2^s. For short vectors.
///
/// - all_reduce: they exchange the whole vector, log2 p times. Any number of ranks: where p is no power of two, some
///   ranks first give their vector to a neighbour, and get the result from it at the end (2 rounds more).
/// - reduce_scatter, p = 2^k: each sends what the other one and those it has yet to meet need, p/2, p/4, ... blocks
///   that do not lie together. (MPICH permutes the vector instead.)
/// - all_gather, p = 2^k: they exchange all they have, 1, 2, 4, ... blocks: (p - 1) / p of the result.
///
/// The lower rank's value is the left operand: folds in rank order, so that any associative operator will do; for
/// p = 2^k as the aligned binary tree. Source: Thakur, Rabenseifner, Gropp 2005, section 4.
struct recursive_doubling {
  static constexpr std::string_view name = "recursive_doubling";

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    if (What == comm_operation::all_reduce) return ranks >= 1;
    return (What == comm_operation::reduce_scatter || What == comm_operation::all_gather) &&
           detail::is_power_of_two(ranks);
  }
  template <comm_operation What>
  static constexpr fold_order order =
      What == comm_operation::reduce_scatter ? fold_order::dyadic : detail::folds_in<fold_order::rank>::order<What>;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    if constexpr (What == comm_operation::all_reduce) {
      round_builder rounds(What, ranks, root, 1, 1);
      const detail::core_ranks core(ranks);
      int k = core.join(rounds, 0);
      for (int bit = 1; bit < core.size; bit *= 2, ++k)
        for (int v = 0; v < core.size; ++v)
          rounds.send(k, core.rank(v), core.rank(v ^ bit), detail::fold_by_rank(v, v ^ bit)).block(0);
      core.leave(rounds, k);
      return rounds.take();
    } else {
      round_builder rounds(What, ranks, root, ranks, 1);
      if constexpr (What == comm_operation::all_gather) {
        detail::double_blocks(rounds, detail::core_ranks(ranks), 0);
      } else {
        int k = 0;
        for (int bit = 1; bit < ranks; bit *= 2, ++k)
          for (int r = 0; r < ranks; ++r) {
            const int peer = r ^ bit;
            rounds.send(k, r, peer, detail::fold_by_rank(r, peer));
            for (int b = peer & (2 * bit - 1); b < ranks; b += 2 * bit) rounds.block(b);
          }
      }
      return rounds.take();
    }
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

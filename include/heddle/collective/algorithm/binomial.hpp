// heddle/collective/algorithm/binomial.hpp: binomial trees: rooted collectives in log2 p rounds.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <bit>
#include <cstddef>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

/// Rounds of a binomial tree over so many ranks: log2, rounded up.
constexpr int tree_rounds(int ranks) {
  return ranks <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<unsigned>(ranks) - 1u));
}

/// The exponent of the lowest set bit. Shapes: n > 0.
constexpr int lowest_bit(int n) {
  return std::countr_zero(static_cast<unsigned>(n));
}

/// Blocks of the ranks below rank root + v of a binomial tree, itself included.
constexpr int subtree_ranks(int v, int ranks) {
  const int full = 1 << lowest_bit(v);
  return v + full < ranks ? full : ranks - v;
}

/// Every rank's block travels from the root down the tree. Returns the rounds it takes.
constexpr int binomial_scatter(round_builder& rounds, int first_round) {
  const int p = rounds.ranks(), depth = tree_rounds(p);
  for (int v = 1; v < p; ++v) {
    const int j = lowest_bit(v), to = (v + rounds.root()) % p;
    rounds.send(first_round + depth - 1 - j, ((v ^ (1 << j)) + rounds.root()) % p, to).blocks(to, subtree_ranks(v, p));
  }
  return depth;
}

/// Every rank's block travels up the tree to the root.
constexpr int binomial_gather(round_builder& rounds, int first_round) {
  const int p = rounds.ranks();
  for (int v = 1; v < p; ++v) {
    const int j = lowest_bit(v), from = (v + rounds.root()) % p;
    rounds.send(first_round + j, from, ((v ^ (1 << j)) + rounds.root()) % p).blocks(from, subtree_ranks(v, p));
  }
  return tree_rounds(p);
}

/// Folds everything to the root, neighbouring groups of 1, 2, 4, ... ranks at a time, whichever rank the root is: of
/// two groups the one whose ranks agree with the root in the next bit receives, on its own side of the operator.
constexpr int aligned_reduce(round_builder& rounds, int first_round) {
  const int p = rounds.ranks();
  std::vector<int> holders(static_cast<std::size_t>(p), 0);  // who has the fold of each group
  for (int r = 0; r < p; ++r) holders[static_cast<std::size_t>(r)] = r;
  int level = 0;
  for (; holders.size() > 1; ++level) {
    const bool to_right = ((rounds.root() >> level) & 1) != 0;
    std::vector<int> merged;
    for (std::size_t g = 0; g < holders.size(); g += 2) {
      if (g + 1 == holders.size()) {
        merged.push_back(holders[g]);
        continue;
      }
      const int from = holders[to_right ? g : g + 1], to = holders[to_right ? g + 1 : g];
      rounds.send(first_round + level, from, to, to_right ? arrival::fold_before : arrival::fold_after)
          .blocks(0, rounds.blocks());
      merged.push_back(to);
    }
    holders = static_cast<std::vector<int>&&>(merged);
  }
  return level;
}

}  // namespace detail

namespace algo {

/// The binomial tree: broadcast, reduce, gather and scatter in log2 p rounds (rounded up) and p - 1 messages. For short
/// vectors, or few ranks.
///
/// Counted from the root, v = rank - root, rank v's parent is v without its lowest set bit; far children come first.
/// Rotated this way the ranks' order would be lost, so reduce folds groups of ranks that lie side by side instead, in
/// the shape of the aligned binary tree over the ranks, for every root: any operator will do, and no extra message is
/// needed.
/// Source: collectives in MPI libraries, e.g. Thakur, Rabenseifner, Gropp 2005.
struct binomial : detail::folds_on_any_ranks<fold_order::dyadic, comm_operation::broadcast, comm_operation::reduce,
                                             comm_operation::gather, comm_operation::scatter> {
  static constexpr std::string_view name = "binomial";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    constexpr bool cut = What == comm_operation::gather || What == comm_operation::scatter;
    round_builder rounds(What, ranks, root, cut ? ranks : 1, 1);
    if constexpr (What == comm_operation::scatter) {
      detail::binomial_scatter(rounds, 0);
    } else if constexpr (What == comm_operation::gather) {
      detail::binomial_gather(rounds, 0);
    } else if constexpr (What == comm_operation::reduce) {
      detail::aligned_reduce(rounds, 0);
    } else {
      const int depth = detail::tree_rounds(ranks);
      for (int v = 1; v < ranks; ++v) {
        const int j = detail::lowest_bit(v);
        rounds.send(depth - 1 - j, ((v ^ (1 << j)) + root) % ranks, (v + root) % ranks).block(0);
      }
    }
    return rounds.take();
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

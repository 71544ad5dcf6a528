// heddle/comm/algorithm/double_tree.hpp: two binary trees, each for half of the vector: few rounds and full bandwidth.
#pragma once

#include <heddle/comm/algorithm/binomial.hpp>
#include <heddle/comm/algorithm/name.hpp>
#include <heddle/comm/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace detail {

/// The parent of position q > 0 in the binary tree over positions 0, ..., n - 1 whose in-order walk is 1, ..., n - 1:
/// leaves are the odd positions. Position 0 is the root, with one child: the largest power of two.
constexpr int tree_parent(int q, int n) {
  const int bit = 1 << lowest_bit(q);
  const int right = (q ^ bit) | (2 * bit);
  return right < n ? right : q ^ bit;
}

/// How one of the two trees lies on the ranks: which rank is at a position.
struct placed_tree {
  int positions = 0;
  int ranks = 0;
  int first = 0;      // the rank at position 0
  bool down = false;  // position q is rank first - q, else first + q
  bool turn = false;  // positions 1, 2, ... are ranks first + (positions - 1), first + 1, first + 2, ...

  constexpr int rank(int q) const {
    if (turn && q > 0) q = q == 1 ? positions - 1 : q - 1;
    return (down ? first - q + ranks : first + q) % ranks;
  }
};

}  // namespace detail

namespace algo {

/// The double binary tree: broadcast, reduce and all_reduce (up and down again) in about log2 p rounds (2 log2 p) with
/// each rank sending no more than once (twice) the vector. Each half of the vector takes one of two trees; no rank is
/// an inner node of both, so both halves move at full speed. A half is cut into `Chunks` pieces that follow each other
/// one round apart. For short and medium vectors on many nodes.
///
/// all_reduce folds in rank order. The trees are rooted at ranks 0 and p - 1 (p odd: 0 and 1, with rank 0 a leaf below
/// rank 1; shifting the tree by one rank, the usual choice, would make one rank inner node of both and lose the order).
/// reduce needs a commutative operator: both trees end at the root.
/// Source: Sanders, Speck, Traff 2009; NVIDIA NCCL 2.4.
template <int Chunks = 1>
struct double_tree {
  static_assert(Chunks > 0, "heddle: algo::double_tree<Chunks>: cut each half of the vector into at least one piece");
  static constexpr detail::numbered_name<Chunks> stored_name{"double_tree"};
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks >= 1 &&
           (What == comm_operation::all_reduce || What == comm_operation::broadcast || What == comm_operation::reduce);
  }
  template <comm_operation What>
  static constexpr fold_order order = What == comm_operation::all_reduce ? fold_order::rank
                                      : What == comm_operation::reduce   ? fold_order::any
                                                                         : fold_order::none;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, 2 * Chunks, 1);
    constexpr bool up = What != comm_operation::broadcast, down = What != comm_operation::reduce;
    const bool odd = ranks % 2 != 0;
    if constexpr (up && down) {
      walk<up, down>(rounds, {ranks, ranks, 0, false, false}, 0, false);
      if (odd)
        walk<up, down>(rounds, {ranks - 1, ranks, 1 % ranks, false, false}, 1, ranks > 1);
      else
        walk<up, down>(rounds, {ranks, ranks, ranks - 1, true, false}, 1, false);
    } else {
      walk<up, down>(rounds, {ranks, ranks, root, false, false}, 0, false);
      walk<up, down>(rounds, {ranks, ranks, root, odd, !odd}, 1, false);
    }
    return rounds.take();
  }

 private:
  // One tree. `guest`: the rank before the root is a leaf below the root.
  template <bool Up, bool Down>
  static constexpr void walk(round_builder& rounds, const detail::placed_tree& tree, int which, bool guest) {
    const int n = tree.positions;
    const int height = detail::tree_rounds(n);
    for (int q = 1; q < n; ++q)
      edge<Up, Down>(rounds, tree.rank(q), tree.rank(detail::tree_parent(q, n)), detail::lowest_bit(q), height, which);
    if (guest) edge<Up, Down>(rounds, tree.first - 1, tree.first, 0, height, which);
  }
  // Nodes of level l send up when all below have, in round l, and get the result when all above have.
  template <bool Up, bool Down>
  static constexpr void edge(round_builder& rounds, int child, int parent, int level, int height, int which) {
    for (int c = 0; c < Chunks; ++c) {
      if constexpr (Up)
        rounds.send(c + level, child, parent, child < parent ? arrival::fold_before : arrival::fold_after)
            .block(which * Chunks + c);
      if constexpr (Down)
        rounds.send(c + (Up ? height : 0) + height - 1 - level, parent, child).block(which * Chunks + c);
    }
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

// heddle/collective/algorithm/double_tree.hpp: double binary trees, each for half of the vector.
#pragma once

#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <cstddef>
#include <string_view>
#include <vector>

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

/// One edge of one of the trees.
struct tree_edge {
  int child = 0;
  int parent = 0;
  int level = 0;   // of the child; leaves have 0
  int height = 0;  // of the tree
  int tree = 0;
  int turn = -1;  // whether it comes first or second among a rank's messages of a round
};

/// Gives every edge a turn, such that the two edges to a rank's children have different ones, and so have the two edges
/// to its parents: then no rank receives two messages at once while another waits. A rank has at most two edges of each
/// sort, so edges form chains, along which turns alternate.
constexpr void turn_by_turn(std::vector<tree_edge>& edges, int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<int> above(2 * count, -1), below(2 * count, -1);
  const auto put = [](std::vector<int>& of, int rank, std::size_t edge) {
    const std::size_t at = 2 * static_cast<std::size_t>(rank);
    of[of[at] < 0 ? at : at + 1] = static_cast<int>(edge);
  };
  for (std::size_t i = 0; i < edges.size(); ++i) {
    put(above, edges[i].child, i);
    put(below, edges[i].parent, i);
  }
  const auto other = [](const std::vector<int>& of, int rank, int edge) {
    const std::size_t at = 2 * static_cast<std::size_t>(rank);
    return of[at] == edge ? of[at + 1] : of[at];
  };
  for (std::size_t i = 0; i < edges.size(); ++i)
    for (int end = 0; end < 2; ++end) {  // from its one end, then from its other one
      if (end == 0 && edges[i].turn >= 0) break;
      edges[i].turn = 0;
      bool at_child = end == 0;
      for (int at = static_cast<int>(i);; at_child = !at_child) {
        const tree_edge& e = edges[static_cast<std::size_t>(at)];
        const int next = at_child ? other(above, e.child, at) : other(below, e.parent, at);
        if (next < 0 || edges[static_cast<std::size_t>(next)].turn >= 0) break;
        edges[static_cast<std::size_t>(next)].turn = 1 - e.turn;
        at = next;
      }
    }
}

}  // namespace detail

namespace algo {

/// The double binary tree: broadcast, reduce and all_reduce (up and down again) in about log2 p rounds (2 log2 p) with
/// each rank sending no more than once (twice) the vector. Each half of the vector takes one of two trees; no rank is
/// an inner node of both, which shares the work evenly. A half is cut into `Chunks` pieces that follow each other one
/// round apart. For short and medium vectors on many nodes. Where a rank sends one message at a time, all_reduce takes
/// at most 4 (log2 p + Chunks) messages' time, broadcast half of that: with many pieces twice, and once, the vector's.
///
/// all_reduce folds in rank order. The trees are rooted at ranks 0 and p - 1 (p odd: 0 and 1, with rank 0 a leaf below
/// rank 1; shifting the tree by one rank, the usual choice, would make one rank inner node of both and lose the order).
/// reduce needs a commutative operator: both trees end at the root.
/// Source: Sanders, Speck, Traff 2009; NVIDIA NCCL 2.4.
template <int Chunks = 1>
struct double_tree
    : detail::offers_on_any_ranks<comm_operation::all_reduce, comm_operation::broadcast, comm_operation::reduce> {
  static_assert(Chunks > 0, "heddle: algo::double_tree<Chunks>: cut each half of the vector into at least one piece");
  static constexpr auto stored_name = detail::name_with("double_tree", Chunks);
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr fold_order order = What == comm_operation::all_reduce ? fold_order::rank
                                      : What == comm_operation::reduce   ? fold_order::any
                                                                         : fold_order::none;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, 2 * Chunks, 1);
    constexpr bool up = What != comm_operation::broadcast, down = What != comm_operation::reduce;
    const bool odd = ranks % 2 != 0;
    std::vector<detail::tree_edge> edges;
    if constexpr (up && down) {
      add_tree(edges, {ranks, ranks, 0, false, false}, 0, false);
      if (odd)
        add_tree(edges, {ranks - 1, ranks, 1 % ranks, false, false}, 1, ranks > 1);
      else
        add_tree(edges, {ranks, ranks, ranks - 1, true, false}, 1, false);
    } else {
      add_tree(edges, {ranks, ranks, root, false, false}, 0, false);
      add_tree(edges, {ranks, ranks, root, odd, !odd}, 1, false);
    }
    detail::turn_by_turn(edges, ranks);
    // Nodes of level l send up when all below have, in round l, and get the result when all above have.
    for (int turn = 0; turn < 2; ++turn)
      for (const detail::tree_edge& e : edges)
        for (int c = 0; up && e.turn == turn && c < Chunks; ++c)
          rounds.send(c + e.level, e.child, e.parent, e.child < e.parent ? arrival::fold_before : arrival::fold_after)
              .block(e.tree * Chunks + c);
    for (int turn = 0; turn < 2; ++turn)
      for (const detail::tree_edge& e : edges)
        for (int c = 0; down && e.turn == turn && c < Chunks; ++c)
          rounds.send(c + (up ? e.height : 0) + e.height - 1 - e.level, e.parent, e.child).block(e.tree * Chunks + c);
    return rounds.take();
  }

 private:
  // One tree. `guest`: the rank before the root is a leaf below the root.
  static constexpr void add_tree(std::vector<detail::tree_edge>& edges, const detail::placed_tree& tree, int which,
                                 bool guest) {
    const int n = tree.positions, height = detail::tree_rounds(n);
    for (int q = 1; q < n; ++q)
      edges.push_back({tree.rank(q), tree.rank(detail::tree_parent(q, n)), detail::lowest_bit(q), height, which, -1});
    if (guest) edges.push_back({tree.first - 1, tree.first, 0, height, which, -1});
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

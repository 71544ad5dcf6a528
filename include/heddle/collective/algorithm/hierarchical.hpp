// heddle/collective/algorithm/hierarchical.hpp: one algorithm inside nodes, another between them.
#pragma once

#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {

namespace detail {

/// Writes the rounds of some of the ranks, from `first_round` on: rank_of(rank there) is the rank here, add(item there)
/// adds its items to the message. Returns the next round.
template <class RankOf, class Add>
constexpr int embed_rounds(round_builder& rounds, round_view inner, int first_round, RankOf rank_of, Add add) {
  for (const round_transfer& t : inner.transfers()) {
    rounds.send(first_round + t.round, rank_of(t.from), rank_of(t.to), t.how);
    for (const int item : inner.items_of(t)) add(item);
  }
  return first_round + inner.rounds();
}

// Refused here and not in the class, so that nothing else is said about a class that is wrong.
template <int G>
consteval bool has_node_size() {
  static_assert(G >= 1, "heddle: hierarchical<G>: G is the number of ranks of a node, 1 or more");
  return G >= 1;
}

}  // namespace detail

namespace algo {

/// Nodes of G ranks each, N of them; rank r is number r % G of node r / G. all_reduce: reduce_scatter inside each
/// node by `Inside`, all_reduce of 1 / G of the vector among the ranks of the same number by `Between`, all_gather
/// inside each node. reduce_scatter and all_gather go the same two steps, inside first and inside last.
///
/// With rings the network between the nodes carries 2 (N - 1) / N / G of the vector per rank, the least possible, and
/// there are 2 (G + N - 2) rounds instead of 2 (G N - 1). Folds in rank order if both algorithms do, as
/// `hierarchical<8, recursive_doubling, recursive_doubling>` does. Offers what both offer on G and N ranks.
template <int G, class Inside = ring, class Between = ring>
struct hierarchical {
  static constexpr auto stored_name =
      detail::name_with("hierarchical", G, std::string_view(Inside::name), std::string_view(Between::name));
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    constexpr auto scatter = comm_operation::reduce_scatter, gather = comm_operation::all_gather;
    if constexpr (!detail::has_node_size<G>())
      return false;
    else if (ranks < G || ranks % G != 0)
      return false;
    else if constexpr (What == comm_operation::all_reduce)
      return Inside::template offers<scatter>(G) && Inside::template offers<gather>(G) &&
             Between::template offers<What>(ranks / G);
    else if constexpr (What == scatter || What == gather)
      return Inside::template offers<What>(G) && Between::template offers<What>(ranks / G);
    else
      return false;
  }
  template <comm_operation What>
  static constexpr fold_order order = [] {
    if constexpr (What == comm_operation::all_gather) {
      return fold_order::none;
    } else {
      const fold_order inside = Inside::template order<comm_operation::reduce_scatter>;
      const fold_order between = Between::template order<What>;
      return inside == fold_order::any || between == fold_order::any ? fold_order::any : fold_order::rank;
    }
  }();

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    if constexpr (!detail::has_node_size<G>())
      return {};
    else if constexpr (What == comm_operation::all_reduce)
      return all_reduce(ranks, root);
    else
      return one_way<What>(ranks, root);
  }

 private:
  // The vector is cut into G blocks; of each, atoms that no message of either algorithm cuts again.
  static constexpr round_table all_reduce(int ranks, int root) {
    const int nodes = ranks / G;
    const round_table scatter = Inside::template rounds<comm_operation::reduce_scatter>(G, 0);
    const round_table gather = Inside::template rounds<comm_operation::all_gather>(G, 0);
    const round_table reduce = Between::template rounds<comm_operation::all_reduce>(nodes, 0);
    const int inside = scatter.parts == gather.parts ? scatter.parts : scatter.parts * gather.parts;
    const int between = reduce.blocks * reduce.parts, atoms = inside * between;
    round_builder rounds(comm_operation::all_reduce, ranks, root, G, atoms);
    const auto in_node = [&](const round_table& table, int first) {
      const int each = atoms / table.parts;
      int next = first;
      for (int n = 0; n < nodes; ++n)
        next = detail::embed_rounds(
            rounds, table, first, [&](int i) { return n * G + i; },
            [&](int item) {  // block and part of the node's algorithm: consecutive atoms
              for (int k = 0; k < each; ++k) rounds.item(item * each + k);
            });
      return next;
    };
    const int middle = in_node(scatter, 0);
    int last = middle;
    for (int i = 0; i < G; ++i)
      last = detail::embed_rounds(
          rounds, reduce, middle, [&](int n) { return n * G + i; },
          [&](int item) {  // of each part of block i, one atom
            for (int k = 0; k < inside; ++k) rounds.item(i * atoms + k * between + item);
          });
    in_node(gather, last);
    return rounds.take();
  }

  template <comm_operation What>
  static constexpr round_table one_way(int ranks, int root) {
    const int nodes = ranks / G;
    const round_table in = Inside::template rounds<What>(G, 0), out = Between::template rounds<What>(nodes, 0);
    const int parts = in.parts * out.parts;
    round_builder rounds(What, ranks, root, ranks, parts);
    const auto inside = [&](int first) {
      int next = first;
      for (int n = 0; n < nodes; ++n)
        next = detail::embed_rounds(
            rounds, in, first, [&](int i) { return n * G + i; },
            [&](int item) {  // the blocks of that rank's number on all nodes
              for (int m = 0; m < nodes; ++m)
                for (int k = 0; k < out.parts; ++k)
                  rounds.item((m * G + item / in.parts) * parts + item % in.parts * out.parts + k);
            });
      return next;
    };
    const auto between = [&](int first) {
      int next = first;
      for (int i = 0; i < G; ++i)
        next = detail::embed_rounds(
            rounds, out, first, [&](int n) { return n * G + i; },
            [&](int item) {
              for (int k = 0; k < in.parts; ++k)
                rounds.item((item / out.parts * G + i) * parts + k * out.parts + item % out.parts);
            });
      return next;
    };
    if constexpr (What == comm_operation::reduce_scatter)
      between(inside(0));
    else
      inside(between(0));
    return rounds.take();
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

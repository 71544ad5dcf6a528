// heddle/collective/decision.hpp: the default choice of an algorithm for each collective.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/type_list.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::inline v0 {

/// The collective algorithms a decision can name. `to_string` gives the name of the type in namespace `algo`.
enum class algorithm_name : std::uint8_t {
  built_in,  ///< the communicator's own call
  ring,
  bidirectional_ring,
  recursive_doubling,
  recursive_halving,
  rabenseifner,
  bruck,
  pat,
  swing,
  hierarchical_2,  ///< by nodes of 2 ranks
  hierarchical_4,
  hierarchical_8,
  double_tree,
  double_tree_8,  ///< 8 chunks
  dyadic,
  binomial,
  scatter_ring,      ///< broadcast: scatter, then all_gather round the ring
  scatter_doubling,  ///< ... by recursive doubling
  scatter_bruck,
  ring_gather,     ///< reduce: reduce_scatter round the ring, then gather
  halving_gather,  ///< ... by recursive halving
  pat_gather,      ///< ... by parallel trees
  reduce_then_scatter,
  direct,
  scattered,
  pairwise,
  grid_all_to_all,
  hierarchical_all_to_all_2,
  hierarchical_all_to_all_4,
  hierarchical_all_to_all_8,
  dissemination
};

/// How many algorithms a decision can name.
inline constexpr std::size_t algorithm_names = static_cast<std::size_t>(algorithm_name::dissemination) + 1;

/// `"double_tree<8>"` for `algorithm_name::double_tree_8`.
constexpr std::string_view to_string(algorithm_name name) noexcept {
  constexpr std::array<std::string_view, algorithm_names> names{"built_in",
                                                                "ring",
                                                                "bidirectional_ring",
                                                                "recursive_doubling",
                                                                "recursive_halving",
                                                                "rabenseifner",
                                                                "bruck",
                                                                "pat",
                                                                "swing",
                                                                "hierarchical<2, ring, ring>",
                                                                "hierarchical<4, ring, ring>",
                                                                "hierarchical<8, ring, ring>",
                                                                "double_tree<1>",
                                                                "double_tree<8>",
                                                                "dyadic",
                                                                "binomial",
                                                                "scatter_all_gather<ring>",
                                                                "scatter_all_gather<recursive_doubling>",
                                                                "scatter_all_gather<bruck>",
                                                                "reduce_scatter_gather<ring>",
                                                                "reduce_scatter_gather<recursive_halving>",
                                                                "reduce_scatter_gather<pat>",
                                                                "reduce_then_scatter",
                                                                "direct",
                                                                "scattered<32>",
                                                                "pairwise",
                                                                "grid_all_to_all",
                                                                "hierarchical_all_to_all<2>",
                                                                "hierarchical_all_to_all<4>",
                                                                "hierarchical_all_to_all<8>",
                                                                "dissemination"};
  return names[static_cast<std::size_t>(name)];
}

/// The name of a type of namespace `algo`; `built_in` if decisions do not know it.
constexpr algorithm_name algorithm_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < algorithm_names; ++i)
    if (to_string(static_cast<algorithm_name>(i)) == name) return static_cast<algorithm_name>(i);
  return algorithm_name::built_in;
}

/// What is known of the network when an algorithm is chosen. Ranks of a node lie side by side.
struct network_hint {
  int ranks_per_node = 1;  ///< 2, 4 and 8, where they divide the ranks, change decisions; other numbers do not
  bool torus = false;      ///< ranks are joined to neighbours only, in rank order
};

/// A collective to be carried out. Units: `bytes` of the whole vector (all_reduce, reduce, broadcast, scans), of all
/// ranks' blocks together (reduce_scatter, all_gather, gather, scatter), of what one rank sends to all (all_to_all).
struct collective_question {
  comm_operation what = comm_operation::all_reduce;
  int ranks = 1;
  std::int64_t bytes = 0;
  bool commutative = true;  ///< of the operator: may contributions be folded in any order?
  bool associative = true;  ///< ... be grouped in any way?
  bool elementwise = true;  ///< ... may vectors be cut?
  network_hint network{};
};

/// Up to which sizes algorithms are used. The defaults are usual ones of MPI libraries. Units: bytes, of the vector as
/// in `collective_question`, or of one rank's block of it where the name says so. Each bound is inclusive.
/// Source: Thakur, Rabenseifner, Gropp 2005; MPICH's and Open MPI's tables.
struct decision_table {
  int few_ranks = 64;
  std::int64_t all_reduce_doubling_few_ranks = 8 << 10;
  std::int64_t all_reduce_doubling = 2 << 10;
  std::int64_t all_reduce_logarithmic_block = 512 << 10;  ///< per rank; longer ones go round the ring
  std::int64_t all_reduce_ordered_doubling = 256 << 10;
  std::int64_t neighbours = 512 << 10;  ///< few rounds up to here where some ranks are nearer than others
  std::int64_t reduce_scatter_halving = 512 << 10;
  std::int64_t reduce_scatter_pat_block = 512 << 10;
  std::int64_t all_gather_bruck = 80 << 10;
  std::int64_t all_gather_doubling = 512 << 10;
  std::int64_t all_gather_pat_block = 512 << 10;
  int all_to_all_bruck_ranks = 8;  ///< at least
  std::int64_t all_to_all_bruck_block = 256;
  std::int64_t all_to_all_scattered_block = 32 << 10;
  int broadcast_binomial_ranks = 7;  ///< at most
  std::int64_t broadcast_binomial = 12 << 10;
  std::int64_t broadcast_logarithmic = 1 << 20;
  std::int64_t broadcast_logarithmic_block = 128 << 10;  ///< if either bound is kept
  std::int64_t reduce_binomial = 16 << 10;
  std::int64_t reduce_logarithmic = 1 << 20;
  std::int64_t reduce_logarithmic_block = 128 << 10;  ///< if either bound is kept
  friend constexpr bool operator==(const decision_table&, const decision_table&) = default;
};

/// The algorithm for a collective, by thresholds. Always one that has rounds for so many ranks and keeps what the
/// operator needs; `built_in` where there is none.
constexpr algorithm_name choose(const collective_question& q, const decision_table& table = {}) {
  using enum algorithm_name;
  const int p = q.ranks, g = q.network.ranks_per_node;
  const bool power_of_two = p > 0 && (p & (p - 1)) == 0;
  const std::int64_t block = p > 0 ? q.bytes / p : 0;
  const bool nodes = (g == 2 || g == 4 || g == 8) && p > g && p % g == 0;
  const auto by_node = [g](algorithm_name two, algorithm_name four, algorithm_name eight) {
    return g == 2 ? two : g == 4 ? four : eight;
  };
  // Where some ranks are nearer than others: what sends little to the far ones.
  const bool neighbours = nodes || q.network.torus;
  const bool swings = p % 2 == 0 && q.bytes <= table.neighbours;
  const algorithm_name neighbours_only =
      nodes ? by_node(hierarchical_2, hierarchical_4, hierarchical_8) : bidirectional_ring;
  switch (q.what) {
    case comm_operation::all_reduce:
      if (!q.associative) return dyadic;
      if (!q.elementwise) return recursive_doubling;
      if (!q.commutative)
        return q.bytes <= table.all_reduce_ordered_doubling || (power_of_two && p < 8) ? recursive_doubling
                                                                                       : double_tree_8;
      if (q.bytes <= (p < table.few_ranks ? table.all_reduce_doubling_few_ranks : table.all_reduce_doubling))
        return recursive_doubling;
      if (neighbours) return swings ? swing : neighbours_only;
      if (block > table.all_reduce_logarithmic_block) return ring;
      return power_of_two ? rabenseifner : pat;  // which has no ranks to add first
    case comm_operation::reduce_scatter:
    case comm_operation::reduce_scatter_v:
      if (!q.elementwise) return built_in;
      if (!q.commutative || !q.associative) return power_of_two ? recursive_doubling : reduce_then_scatter;
      if (nodes && power_of_two) return recursive_doubling;  // which exchanges most with the nearest
      if (neighbours) return swings ? swing : neighbours_only;
      if (power_of_two && q.bytes <= table.reduce_scatter_halving) return recursive_halving;
      return block <= table.reduce_scatter_pat_block ? pat : ring;
    case comm_operation::all_gather:
    case comm_operation::all_gather_v:
      if (neighbours) return swings ? swing : neighbours_only;
      if (power_of_two && q.bytes <= table.all_gather_doubling) return recursive_doubling;
      if (q.bytes <= table.all_gather_bruck) return bruck;
      return block <= table.all_gather_pat_block ? pat : ring;
    case comm_operation::all_to_all:
    case comm_operation::all_to_all_v:
      if (p >= table.all_to_all_bruck_ranks && block <= table.all_to_all_bruck_block) return bruck;
      if (block <= table.all_to_all_scattered_block)
        return nodes ? by_node(hierarchical_all_to_all_2, hierarchical_all_to_all_4, hierarchical_all_to_all_8)
                     : scattered;
      if (q.network.torus) return scattered;
      return power_of_two ? pairwise : direct;
    case comm_operation::broadcast:
      if (q.bytes <= table.broadcast_binomial || p <= 2) return binomial;
      if (p <= table.broadcast_binomial_ranks && q.bytes <= table.broadcast_logarithmic) return binomial;
      if (neighbours) return q.bytes <= table.neighbours ? binomial : scatter_ring;
      if (q.bytes > table.broadcast_logarithmic && block > table.broadcast_logarithmic_block) return double_tree_8;
      return power_of_two ? scatter_doubling : scatter_bruck;
    case comm_operation::reduce:
      if (!q.commutative || !q.associative || !q.elementwise || q.bytes <= table.reduce_binomial) return binomial;
      if (neighbours) return q.bytes <= table.neighbours ? binomial : ring_gather;
      if (q.bytes > table.reduce_logarithmic && block > table.reduce_logarithmic_block) return double_tree_8;
      return power_of_two ? halving_gather : pat_gather;
    case comm_operation::gather:
    case comm_operation::gather_v:
    case comm_operation::scatter:
    case comm_operation::scatter_v:
      return binomial;
    case comm_operation::scan:
    case comm_operation::exclusive_scan:
      return q.associative ? dissemination : built_in;
    default:
      return built_in;
  }
}

/// Calls `f(type_list<A>{})` with the algorithm A of the list that has this name; false if it has none.
template <class... As, class F>
constexpr bool with_algorithm(type_list<As...>, algorithm_name name, F&& f) {
  return ((algorithm_named(As::name) == name && (f(type_list<As>{}), true)) || ...);
}

namespace algo {

/// The algorithm that fits: stands for a choice by `choose`.
struct automatic {
  static constexpr std::string_view name = "automatic";
};

}  // namespace algo
}  // namespace heddle::inline v0

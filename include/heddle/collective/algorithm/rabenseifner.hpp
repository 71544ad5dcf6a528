// heddle/collective/algorithm/rabenseifner.hpp: all_reduce by halving, then doubling.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>

#include <string_view>

namespace heddle::inline v0::algo {

/// Rabenseifner's all_reduce: reduce_scatter by recursive halving, all_gather by recursive doubling: 2 log2 p
/// messages and 2 (p - 1) / p of the vector, as few bytes as the ring. For medium and long vectors where p is a power
/// of two and the network has no bottlenecks. For other p some ranks first give their vector to a neighbour and get
/// the result from it at the end (2 rounds and 2 vectors more). Needs a commutative operator.
/// Source: Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005, section 4.5.
struct rabenseifner : detail::folds_on_any_ranks<fold_order::any, comm_operation::all_reduce> {
  static constexpr std::string_view name = "rabenseifner";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    const detail::core_ranks core(ranks);
    round_builder rounds(What, ranks, root, core.size, 1);
    int k = core.join(rounds, 0);
    k = detail::halve(rounds, core, [](int v) { return v; }, k);
    core.leave(rounds, detail::double_blocks(rounds, core, k));
    return rounds.take();
  }
};

}  // namespace heddle::inline v0::algo

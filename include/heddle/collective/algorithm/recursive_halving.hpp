// heddle/collective/algorithm/recursive_halving.hpp: reduce_scatter by recursive halving.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/algorithm/power_of_two.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {

namespace detail {

/// The rounds of recursive halving from `round` on, on a core whose rank v ends with the blocks
/// [first(v), first(v + 1)). Returns the next round.
template <class First>
constexpr int halve(round_builder& rounds, const core_ranks& core, First first, int round) {
  for (int half = core.size / 2; half >= 1; half /= 2, ++round)
    for (int v = 0; v < core.size; ++v) {
      const int peer = v ^ half, low = peer & ~(half - 1);  // the peer's half: core ranks [low, low + half)
      rounds.send(round, core.rank(v), core.rank(peer), fold_by_rank(v, peer));
      rounds.blocks(first(low), first(low + half) - first(low));
    }
  return round;
}

}  // namespace detail

namespace algo {

/// Recursive halving: in round s rank r meets r XOR p / 2^(s+1) and sends it the half of its blocks that belongs to the
/// other side; (p - 1) / p of the vector in log2 p messages. For short and medium vectors; far ranks exchange most, so
/// that it wants a network without bottlenecks. Where p is no power of two, some ranks first give their vector to a
/// neighbour and get their block from it at the end (2 rounds more).
/// Folds for p = 8, rank 0, in the order 0, 4, 2, 6, 1, 5, 3, 7: needs a commutative operator.
/// Source: Thakur, Rabenseifner, Gropp 2005, section 4.2.
struct recursive_halving : detail::folds_on_any_ranks<fold_order::any, comm_operation::reduce_scatter> {
  static constexpr std::string_view name = "recursive_halving";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, ranks, 1);
    const detail::core_ranks core(ranks);
    int k = core.join(rounds, 0);
    k = detail::halve(rounds, core, [&](int v) { return core.first(v); }, k);
    for (int v = 0; v < core.extra; ++v) rounds.send(k, 2 * v + 1, 2 * v).block(2 * v);
    return rounds.take();
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

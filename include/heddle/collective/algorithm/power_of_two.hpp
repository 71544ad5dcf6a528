// heddle/collective/algorithm/power_of_two.hpp: the largest power of two among the ranks.
#pragma once

#include <heddle/collective/rounds.hpp>

namespace heddle::inline v0 {
namespace detail {

constexpr bool is_power_of_two(int n) noexcept {
  return n >= 1 && (n & (n - 1)) == 0;
}

/// The number of rounds in which something that doubles reaches n: ceil(log2 n).
constexpr int ceil_log2(int n) noexcept {
  int k = 0;
  while ((1 << k) < n) ++k;
  return k;
}

/// The core of p ranks: the largest power of two of them that is not more. Where p is none, the first 2 * extra ranks
/// are pairs of which the odd one is in the core and plays for both; core rank v speaks for the neighbours
/// [first(v), first(v + 1)), so that the order of ranks is kept.
struct core_ranks {
  int ranks = 1;
  int size = 1;   ///< the power of two
  int extra = 0;  ///< ranks outside

  constexpr explicit core_ranks(int p) : ranks(p) {
    while (2 * size <= p) size *= 2;
    extra = p - size;
  }
  constexpr int first(int v) const noexcept { return v < extra ? 2 * v : v + extra; }
  constexpr int rank(int v) const noexcept { return v < extra ? 2 * v + 1 : v + extra; }

  /// Round `round`: the ranks outside give all they have to their neighbours, where it is the left operand.
  constexpr int join(round_builder& rounds, int round) const {
    for (int v = 0; v < extra; ++v)
      rounds.send(round, 2 * v, 2 * v + 1, arrival::fold_before).blocks(0, rounds.blocks());
    return extra > 0 ? round + 1 : round;
  }
  /// Round `round`: they get everything back.
  constexpr int leave(round_builder& rounds, int round) const {
    for (int v = 0; v < extra; ++v) rounds.send(round, 2 * v + 1, 2 * v).blocks(0, rounds.blocks());
    return extra > 0 ? round + 1 : round;
  }
};

/// How what comes from core rank `from` is folded at core rank `to`: the lower rank's value is the left operand.
constexpr arrival fold_by_rank(int from, int to) noexcept {
  return from < to ? arrival::fold_before : arrival::fold_after;
}

}  // namespace detail
}  // namespace heddle::inline v0

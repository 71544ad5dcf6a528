// heddle/collective/algorithm/pat.hpp: PAT: parallel aggregated trees, few blocks to far peers.
#pragma once

#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/algorithm/power_of_two.hpp>
#include <heddle/collective/rounds_reverse.hpp>

#include <string_view>

namespace heddle::inline v0 {

namespace detail {

/// The rounds of an all_gather along parallel trees whose messages carry at most `most` blocks, a power of two.
constexpr round_table parallel_trees(int ranks, int root, int most) {
  round_builder rounds(comm_operation::all_gather, ranks, root, ranks, 1);
  int round = 0, step = (1 << ceil_log2(ranks)) / 2;
  const auto message = [&](int r, int length, int from, int apart) {
    rounds.send(round, r, (r + length) % ranks);
    for (int distance = from; distance + length < ranks; distance += apart)
      rounds.block((r - distance + ranks) % ranks);
  };
  // The top of all trees, level by level, while a message of a whole level is short enough.
  for (int blocks = 1; step >= 1 && blocks < most; step /= 2, blocks *= 2, ++round)
    for (int r = 0; r < ranks; ++r) message(r, step, 0, 2 * step);
  // Below there is a subtree of 2 * step ranks under each of the places reached. They are walked together, depth first,
  // the nearest first: place `at` of each comes from the place without its lowest bit.
  for (int at = 1; at < 2 * step && at < ranks; ++at, ++round)
    for (int r = 0; r < ranks; ++r) message(r, at & -at, at & (at - 1), 2 * step);
  return rounds.take();
}

// Refused here and not in the class, so that nothing else is said about a class that is wrong.
template <int Most>
consteval bool bounds_messages() {
  constexpr bool ok = is_power_of_two(Most);
  static_assert(ok, "heddle: bounded_pat<Most>: Most is a number of blocks, a power of two");
  return ok;
}

}  // namespace detail

namespace algo {

/// Parallel aggregated trees. Every block is spread over a binomial tree that begins at its owner: at distance s from
/// the owner it comes from the rank at distance s without its lowest bit. The trees of all blocks are the same,
/// shifted, so that in a round all ranks send 2^k ranks ahead, k = L - 1, ..., 0, and aggregate the blocks of all
/// trees in one message: 1, 2, 4, ... blocks, p - 1 in all (p = 13: 1, 2, 3, 6). Bruck's algorithm sends the longest
/// messages to the farthest ranks, this one the shortest. Any number of ranks; for medium blocks on networks that
/// taper. That is all_gather; reduce_scatter is the same backwards, all_reduce one after the other, and these need a
/// commutative operator.
/// Source: Jeaugey 2025, arXiv:2506.20252 (the fully aggregated form; it is in NCCL from 2.23 on).
struct pat : detail::gathers_and_reduces {
  static constexpr std::string_view name = "pat";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return detail::from_all_gather<What>(detail::parallel_trees(ranks, root, ranks));
  }
};

/// Parallel aggregated trees whose messages carry at most `Most` blocks, a power of two. The first log2 Most messages
/// are those of `pat`; the subtrees below are then walked together, depth first, in 2^L / Most - 1 more. For
/// reduce_scatter and all_reduce where memory is short: the sums that a rank has begun and not yet sent are
/// O(Most log(p / Most)) blocks instead of p / 2.
/// Source: Jeaugey 2025, arXiv:2506.20252.
template <int Most>
struct bounded_pat {
  static constexpr auto stored_name = detail::name_with("bounded_pat", Most);
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return detail::bounds_messages<Most>() && pat::offers<What>(ranks);
  }
  template <comm_operation What>
  static constexpr fold_order order = pat::order<What>;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    if (!detail::bounds_messages<Most>()) return {};
    return detail::from_all_gather<What>(detail::parallel_trees(ranks, root, Most));
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

// heddle/collective/algorithm/dissemination.hpp: scan and exclusive_scan in log2 p rounds.
#pragma once

#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0::algo {

/// Prefixes by dissemination: in round s rank r sends what it has folded so far, of the up to 2^s ranks that end with
/// itself, to rank r + 2^s. scan takes log2 p rounds (rounded up). exclusive_scan first moves every value to the next
/// rank and then scans ranks 1, ..., p - 1: one round more, at most; rank 0 gets nothing, its result is the identity.
/// Folds in rank order. Source: Hillis and Steele 1986.
struct dissemination
    : detail::folds_on_any_ranks<fold_order::rank, comm_operation::scan, comm_operation::exclusive_scan> {
  static constexpr std::string_view name = "dissemination";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, 1, 1);
    constexpr int skip = What == comm_operation::exclusive_scan ? 1 : 0;
    if constexpr (skip != 0)
      for (int r = 0; r + 1 < ranks; ++r) rounds.send(0, r, r + 1).block(0);
    for (int s = 0; s < detail::tree_rounds(ranks - skip); ++s)
      for (int r = skip; r + (1 << s) < ranks; ++r)
        rounds.send(skip + s, r, r + (1 << s), arrival::fold_before).block(0);
    return rounds.take();
  }
};

}  // namespace heddle::inline v0::algo

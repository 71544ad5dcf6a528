// heddle/collective/algorithm/ring.hpp: ring algorithms: fewest bytes, most rounds.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0::algo {

/// The ring: reduce_scatter and all_gather in p - 1 rounds, all_reduce as one after the other in 2 (p - 1). Each rank
/// sends (p - 1) / p of the vector per half, the least possible, to one neighbour, from another one. For long vectors.
/// Folds the contributions to rank r's block in the order r + 1, r + 2, ..., r: needs a commutative operator.
struct ring : detail::gathers_and_reduces {
  static constexpr std::string_view name = "ring";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, ranks, 1);
    int first = 0;
    if constexpr (What != comm_operation::all_gather) {
      for (int k = 0; k < ranks - 1; ++k)
        for (int r = 0; r < ranks; ++r)
          rounds.send(k, r, (r + 1) % ranks, arrival::fold_before).block((r - k - 1 + ranks) % ranks);
      first = ranks - 1;
    }
    if constexpr (What != comm_operation::reduce_scatter)
      for (int k = 0; k < ranks - 1; ++k)
        for (int r = 0; r < ranks; ++r) rounds.send(first + k, r, (r + 1) % ranks).block((r - k + ranks) % ranks);
    return rounds.take();
  }
};

}  // namespace heddle::inline v0::algo

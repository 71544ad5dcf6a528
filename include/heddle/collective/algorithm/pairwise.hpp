// heddle/collective/algorithm/pairwise.hpp: pairwise exchange: in step k with rank r XOR k.
#pragma once

#include <heddle/collective/algorithm/direct.hpp>

#include <string_view>

namespace heddle::inline v0::algo {

/// Pairwise exchange, for powers of two: in round k = 1, ..., p - 1 ranks r and r XOR k exchange. all_to_all,
/// all_gather and reduce_scatter in p - 1 messages per rank and the least possible bytes; both directions of a link are
/// in use at once. reduce_scatter folds in the order of the rounds: needs a commutative operator.
struct pairwise : detail::exchanges_with_each {
  static constexpr std::string_view name = "pairwise";

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return (ranks & (ranks - 1)) == 0 && exchanges_with_each::offers<What>(ranks);
  }

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return detail::exchange_with_each<What>(ranks, root, 1, [](int r, int k) { return r ^ k; });
  }
};

}  // namespace heddle::inline v0::algo

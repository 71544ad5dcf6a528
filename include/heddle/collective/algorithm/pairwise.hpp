// heddle/collective/algorithm/pairwise.hpp: direct exchange in pairs: in step k rank r exchanges with rank r XOR k.
#pragma once

#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace algo {

/// Pairwise exchange, for powers of two: in round k = 1, ..., p - 1 ranks r and r XOR k exchange. all_to_all,
/// all_gather and reduce_scatter in p - 1 messages per rank and the least possible bytes; both directions of a link are
/// in use at once. reduce_scatter folds in the order of the rounds: needs a commutative operator.
struct pairwise {
  static constexpr std::string_view name = "pairwise";

  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks >= 1 && (ranks & (ranks - 1)) == 0 &&
           (What == comm_operation::all_to_all || What == comm_operation::all_gather ||
            What == comm_operation::reduce_scatter);
  }
  template <comm_operation What>
  static constexpr fold_order order = What == comm_operation::reduce_scatter ? fold_order::any : fold_order::none;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, What == comm_operation::all_to_all ? ranks * ranks : ranks, 1);
    for (int k = 1; k < ranks; ++k)
      for (int r = 0; r < ranks; ++r) {
        const int to = r ^ k;
        if constexpr (What == comm_operation::all_to_all)
          rounds.send(k - 1, r, to).block(r * ranks + to);
        else if constexpr (What == comm_operation::all_gather)
          rounds.send(k - 1, r, to).block(r);
        else
          rounds.send(k - 1, r, to, arrival::fold_before).block(to);
      }
    return rounds.take();
  }
};

}  // namespace algo
}  // namespace heddle::inline v0

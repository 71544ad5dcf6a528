// heddle/collective/algorithm/reduce_then_scatter.hpp: reduce_scatter through one rank, in order.
#pragma once

#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0::algo {

/// reduce_scatter as a reduce of the whole vector to rank 0, in the aligned binary tree over the ranks, and a scatter
/// down the binomial tree: 2 log2 p rounds, log2 p times the vector. For operators that need an order where the number
/// of ranks is no power of two; elsewhere recursive doubling sends less.
struct reduce_then_scatter : detail::folds_on_any_ranks<fold_order::dyadic, comm_operation::reduce_scatter> {
  static constexpr std::string_view name = "reduce_then_scatter";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, ranks, 1);
    const int reduced = detail::aligned_reduce(rounds, 0);
    detail::binomial_scatter(rounds, reduced);
    return rounds.take();
  }
};

}  // namespace heddle::inline v0::algo

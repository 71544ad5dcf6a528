// heddle/collective/algorithm/direct.hpp: direct exchange with all other ranks, some at a time.
#pragma once

#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace detail {

// An algorithm for the operations in which every rank has something for every other one.
struct exchanges_with_each : folds_on_any_ranks<fold_order::any, comm_operation::all_to_all, comm_operation::all_gather,
                                                comm_operation::reduce_scatter> {};

// Every rank exchanges with every other one directly: in step k = 1, ..., p - 1 rank r sends to `partner(r, k)` what is
// for it. `at_once` steps make a round.
template <comm_operation What, class Partner>
constexpr round_table exchange_with_each(int ranks, int root, int at_once, Partner partner) {
  round_builder rounds(What, ranks, root, What == comm_operation::all_to_all ? ranks * ranks : ranks, 1);
  for (int k = 1; k < ranks; ++k)
    for (int r = 0; r < ranks; ++r) {
      const int to = partner(r, k), round = (k - 1) / at_once;
      if constexpr (What == comm_operation::all_to_all)
        rounds.send(round, r, to).block(r * ranks + to);
      else if constexpr (What == comm_operation::all_gather)
        rounds.send(round, r, to).block(r);
      else
        rounds.send(round, r, to, arrival::fold_before).block(to);
    }
  return rounds.take();
}

}  // namespace detail

namespace algo {

/// Direct exchange by shifts, at most `Limit` messages of a rank at a time: in step k = 1, ..., p - 1 every rank sends
/// to the k-th after it and receives from the k-th before it. all_to_all, all_gather and reduce_scatter in p - 1
/// messages per rank and the least possible bytes, in (p - 1) / Limit rounds (rounded up). For all_to_all of medium
/// blocks; reduce_scatter folds in the order r + 1, r + 2, ..., r: needs a commutative operator.
template <int Limit = 32>
struct scattered : detail::exchanges_with_each {
  static_assert(Limit > 0, "heddle: algo::scattered<Limit>: at least one message must be under way");
  static constexpr auto stored_name = detail::name_with("scattered", Limit);
  static constexpr std::string_view name = stored_name;

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return detail::exchange_with_each<What>(ranks, root, Limit, [ranks](int r, int k) { return (r + k) % ranks; });
  }
};

/// Direct exchange with one message of a rank at a time: p - 1 rounds, in which nobody waits for a third rank. For long
/// blocks.
struct direct : scattered<1> {
  static constexpr std::string_view name = "direct";
};

}  // namespace algo
}  // namespace heddle::inline v0

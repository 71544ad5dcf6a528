// heddle/collective/algorithm/offers.hpp: the operations and the order of folds of algorithms for any number of ranks.
#pragma once

#include <heddle/collective/rounds.hpp>
#include <heddle/comm/communicator.hpp>

namespace heddle::inline v0::detail {

// An algorithm that has rounds for these operations on any number of ranks.
template <comm_operation... Operations>
struct offers_on_any_ranks {
  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks >= 1 && ((What == Operations) || ...);
  }
};

// An algorithm for all_gather, reduce_scatter and all_reduce whose folds are in an order of its own.
struct gathers_and_reduces
    : offers_on_any_ranks<comm_operation::all_gather, comm_operation::reduce_scatter, comm_operation::all_reduce> {
  template <comm_operation What>
  static constexpr fold_order order = What == comm_operation::all_gather ? fold_order::none : fold_order::any;
};

}  // namespace heddle::inline v0::detail

// heddle/collective/algorithm/offers.hpp: bases of algorithms: their operations and order of folds.
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

// An algorithm that has rounds for `Operation` on as many ranks as `Part` has for `PartOperation`.
template <comm_operation Operation, class Part, comm_operation PartOperation>
struct offers_with_part {
  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return What == Operation && Part::template offers<PartOperation>(ranks);
  }
};

// An algorithm whose folds are in this order; an operation that only moves data has none.
template <fold_order Order>
struct folds_in {
  template <comm_operation What>
  static constexpr fold_order order = folds_contributions(What) ? Order : fold_order::none;
};

// An algorithm that has rounds for these operations on any number of ranks, with folds in this order.
template <fold_order Order, comm_operation... Operations>
struct folds_on_any_ranks : offers_on_any_ranks<Operations...>, folds_in<Order> {};

// An algorithm for all_gather, reduce_scatter and all_reduce whose folds are in an order of its own.
struct gathers_and_reduces : folds_on_any_ranks<fold_order::any, comm_operation::all_gather,
                                                comm_operation::reduce_scatter, comm_operation::all_reduce> {};

}  // namespace heddle::inline v0::detail

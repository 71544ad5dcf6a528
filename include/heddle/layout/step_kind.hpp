// heddle/layout/step_kind.hpp: the kinds of steps that a redistribution is made of.
#pragma once

#include <heddle/core/config.hpp>

#include <string_view>

namespace heddle::inline v0 {

/// What one step does among the ranks along its axes. Bytes sent per rank, with T the bytes that are local to the other
/// axes and p the ranks along this one (even sizes):
enum class step_kind : unsigned char {
  none,
  slice,              ///< replicated to split: keep the own part; 0
  reduce_scatter,     ///< partial to split; (p-1)/p T
  all_to_all,         ///< split along one dimension to split along another; (p-1)/p^2 T
  all_reduce,         ///< partial to replicated, over one axis or several; 2(p-1)/p T
  keep_on_owner,      ///< replicated to partial: the first rank keeps the values, the others hold the identity; 0
  all_gather,         ///< split to replicated; (p-1)/p T
  pad_with_identity,  ///< split to partial: the own part, surrounded by the identity; 0
  exchange,           ///< any cuts to any others: each rank gets what it lacks straight from a rank that has it
};

/// `"all_gather"` for `step_kind::all_gather`.
constexpr std::string_view to_string(step_kind kind) {
  constexpr std::string_view names[]{"none",          "slice",      "reduce_scatter",    "all_to_all", "all_reduce",
                                     "keep_on_owner", "all_gather", "pad_with_identity", "exchange"};
  return names[static_cast<unsigned>(kind)];
}

}  // namespace heddle::inline v0

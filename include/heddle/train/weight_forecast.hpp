// heddle/train/weight_forecast.hpp: the most of whole weights and gradients that a rank is lent at a time, from its list of actions.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/table.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::train::detail {

// A stage of the rank as far as whole weights and gradients go. Units: elements.
struct whole_stage {
  int index;              // in the table
  int part;               // of the model
  std::int64_t elements;  // of each flat buffer
  bool borrows;           // its head uses the embedding of the stage here with part 0
  bool complete_alone;    // its gradients are complete when its own microbatches are through
};

// Of weights that are whole from UNSHARD to RESHARD, and those of an embedding that a head borrows.
HEDDLE_INLINE std::int64_t most_whole_weights(schedule::table_view table, int rank,
                                              std::span<const whole_stage> stages);
// Of both: of gradients from the stage's first backward to REDUCE_GRAD, or to the end of the list where other stages have a share;
// of weights, where they are shares (`zero<3>`), as above, and of one stage at a time for its first ones.
// `by_size`: the sum over all sizes of the most of each, which is what there is where a buffer of one size is never another's memory.
HEDDLE_INLINE std::int64_t most_lent(schedule::table_view table, int rank, std::span<const whole_stage> stages,
                                     bool lends_weights, bool by_size);

}  // namespace heddle::inline v0::train::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/weight_forecast.hpp>
#endif

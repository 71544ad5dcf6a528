// heddle/train/weight_forecast.hpp: the most weights and gradients lent at a time.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/schedule/table.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

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
// What is lent to a stage: its gradients (`zero<2>`), its weights, too (`zero<3>`).
struct lent_kinds {
  bool weights, gradients;
};
// Of those: of gradients from the stage's first backward to REDUCE_GRAD, or to the end of the list where other stages have a share;
// of weights as above, and of one stage at a time for its first ones.
// `by_size`: the sum over all sizes of the most of each, which is what there is where a buffer of one size is never another's memory.
HEDDLE_INLINE std::int64_t most_lent(schedule::table_view table, int rank, std::span<const whole_stage> stages,
                                     lent_kinds kinds, bool by_size);

// The most that is lent to stages with weights of type T, each memory of `lent_memories` for itself. Units: bytes.
struct most_lent_bytes {
  std::int64_t of_weights = 0, of_gradients = 0;  // the first is of both where they are one
  std::int64_t total() const noexcept { return of_weights + of_gradients; }
};
template <class T>
most_lent_bytes most_bytes_lent(schedule::table_view table, int rank, std::span<const whole_stage> stages,
                                bool lends_weights, bool by_size) {
  using sum = sum_of_type<T>;
  constexpr auto size = static_cast<std::int64_t>(sizeof(T)), size_of_sum = static_cast<std::int64_t>(sizeof(sum));
  if constexpr (std::is_same_v<T, sum>)
    return {size * most_lent(table, rank, stages, {lends_weights, true}, by_size), 0};
  else
    return {size * most_lent(table, rank, stages, {lends_weights, false}, by_size),
            size_of_sum * most_lent(table, rank, stages, {false, true}, by_size)};
}

}  // namespace heddle::inline v0::train::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/weight_forecast.hpp>
#endif

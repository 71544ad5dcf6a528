// heddle/train/activations/bytes.hpp: the memory that activations take on one rank.
#pragma once

#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/train/trainer_checks.hpp>

#include <cstdint>

namespace heddle::inline v0::train {

/// Memory for the activations of one rank. Units: bytes.
struct activation_bytes {
  std::int64_t saved = 0;    ///< from forward to backward: slots of each stage times bytes of one
  std::int64_t waiting = 0;  ///< from backward_input to backward_weight: gradients, and what was computed again
  std::int64_t scratch = 0;  ///< what the microbatches of a stage share, also for what is computed again
  std::int64_t total() const noexcept { return saved + waiting + scratch; }
  friend bool operator==(const activation_bytes&, const activation_bytes&) = default;
};

namespace detail {
template <class Held>
activation_bytes bytes_of_activations(schedule::plan_view plan, int rank, const Held& held) {
  activation_bytes all;
  for (int k = 0; k < held.size(); ++k) {
    const auto& h = held[k];
    all.saved += plan.storage.slots(h.index) * model::of_stage::saved_bytes_per_slot(h.stage);
    all.waiting += most_deferred(plan.table.list(rank), h.index) * model::of_stage::deferred_bytes(h.stage);
    all.scratch += model::of_stage::workspace_bytes(h.stage);
  }
  return all;
}
}  // namespace detail

}  // namespace heddle::inline v0::train

// heddle/observe/activity.hpp: names of activities, and their classes: compute and communication.
#pragma once

#include <heddle/core/observer.hpp>

#include <cstddef>
#include <iterator>

namespace heddle::inline v0::observe {

/// The plain name of an activity.
constexpr const char* activity_name(activity kind) noexcept {
  constexpr const char* names[] = {"forward",    "backward",  "backward input", "backward weight", "send", "recv",
                                   "collective", "optimizer", "data",           "checkpoint",      "other"};
  constexpr auto last = static_cast<std::size_t>(activity::other);  // as the enumerators stand
  static_assert(std::size(names) == last + 1, "heddle: every activity has a name");
  const auto at = static_cast<std::size_t>(kind);
  return names[at < last ? at : last];
}

/// Work of the model on a microbatch: what a pipeline schedule places.
constexpr bool is_stage_work(activity kind) noexcept {
  return kind == activity::forward || kind == activity::backward || kind == activity::backward_input ||
         kind == activity::backward_weight;
}
/// Whether it computes: the work of a stage, or a step of the optimizer.
constexpr bool is_compute(activity kind) noexcept {
  return is_stage_work(kind) || kind == activity::optimizer;
}
/// Whether it communicates: a message or a collective.
constexpr bool is_communication(activity kind) noexcept {
  return kind == activity::send || kind == activity::recv || kind == activity::collective;
}

}  // namespace heddle::inline v0::observe

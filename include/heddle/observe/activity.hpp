// heddle/observe/activity.hpp: names of activities, and their classes: compute and communication.
#pragma once

#include <heddle/core/observer.hpp>

namespace heddle::inline v0::observe {

/// The plain name of an activity.
constexpr const char* activity_name(activity kind) noexcept {
  switch (kind) {
    case activity::forward:
      return "forward";
    case activity::backward:
      return "backward";
    case activity::backward_input:
      return "backward input";
    case activity::backward_weight:
      return "backward weight";
    case activity::send:
      return "send";
    case activity::recv:
      return "recv";
    case activity::collective:
      return "collective";
    case activity::optimizer:
      return "optimizer";
    case activity::data:
      return "data";
    case activity::checkpoint:
      return "checkpoint";
    case activity::other:
      break;
  }
  return "other";
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

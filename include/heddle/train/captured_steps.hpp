// heddle/train/captured_steps.hpp: the policy of steps as one graph (not run on a GPU).
#pragma once

#include <heddle/train/captured_step.hpp>
#include <heddle/train/steps.hpp>

namespace heddle::inline v0 {

/// All operations of a step (forward, backward, messages, collectives, the norm, the optimizer) are captured into a graph of the
/// backend's queue, which each rank launches with one call (of ranks that are threads and share a device one, for all of them); then it waits, and reads loss and norm. The first step is done eagerly, so that all
/// memory is there and communicators are connected, the second is captured; both, and those that follow, have the same bits. Samples, targets, learning rate and the
/// scalars of AdamW are written to pinned memory before the launch, and the norm of all ranks is summed on the device. Behind a validation, sampled text or
/// another pass outside of steps, the next step is done eagerly and the one behind it captured again, on all ranks.
/// For backends on a device whose queue can be captured (`compute::cuda`), in the model's element type but for products (`precision<products_in<...>>`), with
/// the norm known before a step, without an observer, with activations that stay on the device, and stages whose verbs read nothing on the host
/// (`only_queues`; mixtures of experts do so where no rows travel between ranks). Several ranks talk over NCCL, or are threads that share a device or are on several that reach each other's memory.
struct captured_steps {
  using kind = steps_kind;
  static constexpr bool captured = true;
  template <class Run>
  using step = train::detail::captured_step<Run>;
  // Whether these steps are; a compile error where they cannot be.
  template <class Strategy, class Stage, class Optimizer, class World>
  static consteval bool are_captured() {
    return train::detail::steps_are_captured<Strategy, Stage, Optimizer, World>();
  }
};

}  // namespace heddle::inline v0

// heddle/train/steps.hpp: policies of a training step, and names of those with a header.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0 {

/// The kind of policies that say how a step gets to the device.
struct steps_kind {};

/// The host gives each operation of each step to the backend. The default.
struct eager_steps {
  using kind = steps_kind;
  static constexpr bool captured = false;
};

struct captured_steps;  // of train/captured_steps.hpp

/// The kind of policies that say when the norm of the gradients is checked.
struct norm_check_kind {};

/// The norm of all gradients is known before any weight changes. The default.
struct norm_first {
  using kind = norm_check_kind;
  static constexpr bool steps_first = false;
  static constexpr bool copies = false;
};

struct post_validation;  // of train/post_validation.hpp
struct post_validation_with_copy;

/// The kind of policies that say whether a rank waits for the sum of a stage's gradients.
struct reductions_kind {};

/// It waits where they are complete (REDUCE_GRAD). The default.
struct reduce_in_turn {
  using kind = reductions_kind;
  static constexpr bool beside = false;
};

/// The sum begins where they are complete and goes on beside what the rank still computes; all of them end before the
/// optimizer's step. Losses, norms and weights have the bits of `reduce_in_turn` where the transport's started
/// collectives have those of its others (threads). It pays on ranks with several stages, on transports that go on by
/// themselves.
/// Memory: with `zero<2>` and `zero<3>` whole gradients stay until the end of the backward, not to REDUCE_GRAD. For
/// memory of the host (elsewhere reductions are in the order of the backend's queue), communicators with started
/// collectives, and gradients summed in the type in which they are kept; not with `post_validation`, which steps stage
/// by stage.
/// Source: Jiang et al. 2024, arXiv:2402.15627 (MegaScale), section 3.2.
struct reduce_beside {
  using kind = reductions_kind;
  static constexpr bool beside = true;
};

}  // namespace heddle::inline v0

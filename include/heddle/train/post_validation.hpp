// heddle/train/post_validation.hpp: whether an optimizer step waits for the global gradient norm, as policies.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0 {

struct norm_check_kind {};

/// The norm of all gradients is known before any weight changes. The default.
struct norm_first {
  using kind = norm_check_kind;
  static constexpr bool steps_first = false;
};

/// Each rank steps as if nothing had to be clipped, then the norm is added up; if it says that gradients should have been
/// clipped (or that one is not finite, or that some targets were ignored), the step is taken back and done again. A rank
/// that knows from its own share that the norm is too large waits. Without clipping the weights are those of
/// `norm_first` bit for bit; with it they differ by the rounding of taking a step back. So it pays where clipping is rare.
/// In a table that has OPTIM, a stage steps there, when it shares no gradient with others.
/// Requires learning_rate weight_decay < 1. Source: Qi et al. 2023, arXiv:2401.10241, section 4.
struct post_validation {
  using kind = norm_check_kind;
  static constexpr bool steps_first = true;
};

}  // namespace heddle::inline v0

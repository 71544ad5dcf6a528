// heddle/train/post_validation.hpp: steps that validate the gradient norm afterwards.
#pragma once

#include <heddle/train/step_ahead.hpp>
#include <heddle/train/steps.hpp>

namespace heddle::inline v0 {

/// No rank waits for the norm. Each steps by the sums over its own pipeline rank (dp and tp), unless they alone say
/// that gradients must be clipped, and begins the next step; the sums travel along pp and are added up behind the
/// forwards that begin that step (`schedule::warm_up`), before anything touches the gradients. Pipeline ranks that hold
/// copies of a weight (the tied embedding, replicas) step together or not at all, so that copies stay the same bits;
/// they have waited for each other to add up its gradient. If the global norm says that gradients should have been
/// clipped, that one is not finite or that some targets were ignored, all ranks take the step back, do it again, and
/// those forwards, too. Without clipping the weights are those of `norm_first` bit for bit; with it they differ by the
/// rounding of taking a step back. So it pays where clipping is rare, and where ranks end a step one after the other,
/// as under ZB-V and, where no embedding is tied across them, ZB-H2: there a step takes only as long as its work.
/// `trainer::run` steps so, `step_ahead` and `finish_step` do by hand; `step` does both. In a table that has OPTIM, a
/// stage steps there, when it shares no gradient with others.
/// Requires learning_rate weight_decay < 1. Source: Qi et al. 2023, arXiv:2401.10241, section 4; there ranks step by the
/// sums of all ranks before them, for which under 1F1B they would wait.
struct post_validation {
  using kind = norm_check_kind;
  static constexpr bool steps_first = true;
  static constexpr bool copies = false;
  template <class Run>
  using step = train::detail::step_ahead<Run>;
};

/// As `post_validation`, but a step is taken back from a copy of the weights and moments that a rank owns: what clipped
/// steps give is that of `norm_first` bit for bit, too, and learning_rate weight_decay may be anything.
/// Bytes: three more numbers for each owned parameter, written once a step.
struct post_validation_with_copy {
  using kind = norm_check_kind;
  static constexpr bool steps_first = true;
  static constexpr bool copies = true;
  template <class Run>
  using step = train::detail::step_ahead<Run>;
};

}  // namespace heddle::inline v0

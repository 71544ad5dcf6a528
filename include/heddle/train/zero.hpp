// heddle/train/zero.hpp: ZeRO stages: shares of moments, gradients and weights.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0 {

/// The kind of policies that name a ZeRO stage.
struct zero_kind {};

namespace detail {
// In functions: a class whose own assertion fails is no policy any more for clang, which would be a second error.
template <int Stage, int Resident>
constexpr bool zero_checked() {
  static_assert(
      Stage >= 0 && Stage <= 3,
      "heddle: zero<Stage>: Stage is 0 (all replicated), 1 (optimizer state sharded over dp), 2 (gradients, too) "
      "or 3 (weights, too)");
  static_assert(
      Resident >= 1,
      "heddle: zero<3, Resident>: at least 1 stage of a rank is whole at a time; 2 fetches the next one ahead");
  return true;
}
}  // namespace detail

/// ZeRO stage over the ranks that hold the same weights, d of them (dp, say). With n elements of a pipeline stage:
///
/// | | moments | gradients | weights | calls per stage and step |
/// |---|---|---|---|---|
/// | `zero<0>` | 2n | n | n | one all-reduce of the gradients |
/// | `zero<1>` | 2n/d | n | n | one reduce-scatter of the gradients, one all-gather of the weights |
/// | `zero<2>` | 2n/d | n/d, and n from the stage's first backward to its reduction | n | the same |
/// | `zero<3>` | 2n/d | the same | n/d, and n from UNSHARD to RESHARD | one reduce-scatter, an all-gather at each UNSHARD |
///
/// Shares are balanced: n/d rounded up or down. Gradients of a step's microbatches are added up before they are reduced, so
/// `zero<2>` saves where a rank holds several stages whose backwards do not interleave (looped schedules), and between steps.
/// `zero<3>` has UNSHARD and RESHARD in the schedule's table (`schedule::passes::unshard`): the `Resident` stages that a rank
/// uses next are whole, the first of them in use, the others on their way while it computes (with a `precision` of weights of
/// another type a gather is waited for where it starts; where the host may not touch the backend's memory, gathers are in the order of
/// its queue, and nothing is computed beside them); 1: nothing is fetched ahead. A
/// schedule that takes all microbatches through one stage before the next (`schedule::breadth_first`) gathers each stage
/// twice at most, not twice for each microbatch; a rank with one stage gathers it once a step.
/// A stage with a share of the tied embedding, and replicas, keep their gradients whole until the end of the step.
/// Bytes on the wire: those of `zero<0>`, and with `zero<3>` (d-1)/d n for each UNSHARD instead of the one gathering.
/// Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv:1910.02054, section 5 (P_os, P_os+g, P_os+g+p); Lamy-Poirier 2022,
/// arXiv:2211.05953 (with pipelines).
template <int Stage,  // heddle: zero<Stage>: Stage is a number, 0 to 3; over which axes follows from the sharding
          int Resident = 2>
struct zero {
  static_assert(detail::zero_checked<Stage, Resident>());
  using kind = zero_kind;
  static constexpr int stage = Stage >= 0 && Stage <= 3 ? Stage : 0;
  static constexpr int resident = Resident >= 1 ? Resident : 1;
};

}  // namespace heddle::inline v0

// heddle/train/zero.hpp: how much of the optimizer's state each data-parallel rank keeps.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0 {

struct zero_kind {};

/// ZeRO stage over the dp axis. `zero<0>`: every rank keeps all optimizer state and gradients are all-reduced.
/// `zero<1>`: each rank keeps the AdamW moments of a balanced 1/dp share; gradients are reduce-scattered, each rank
/// updates its share, and weights are all-gathered. Same bytes on the wire, 1/dp of the state.
/// Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv:1910.02054, section 5.1 (P_os).
template <int Stage>
struct zero {
  static_assert(Stage == 0 || Stage == 1,
                "heddle: zero<Stage>: Stage is 0 (replicated optimizer state) or 1 (state sharded over dp)");
  using kind = zero_kind;
  static constexpr int stage = Stage;
};

}  // namespace heddle::inline v0

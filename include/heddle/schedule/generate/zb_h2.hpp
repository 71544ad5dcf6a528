// heddle/schedule/generate/zb_h2.hpp: ZB-H2: no idle rank, for twice the activations.
#pragma once

#include <heddle/schedule/stage_map.hpp>

namespace heddle::inline v0::schedule {

/// ZB-H2: rank r runs 2 (p - 1 - r) + 1 forwards before its first I, and puts its W off by 2r microbatches. With
/// F = I = W nothing idles between a rank's first action and its last: the bubble is the skew of the start, (p - 1) F.
/// All ranks hold min(2p - 1, m) activations. For m < 2p - 1 the schedule of 2p - 1 microbatches without the others.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 2.2 and figure 3.
template <microbatches_like Microbatches = microbatches<>>
struct zb_h2 : one_stage_per_rank<Microbatches> {
  using one_stage_per_rank<Microbatches>::one_stage_per_rank;

  constexpr int action_count(int ranks) const noexcept { return 3 * ranks * this->microbatch_count(); }
  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int m = this->microbatch_count();
    const int most = 2 * ranks - 1;
    const int n = m > most ? m : most;
    int forwards = 0, inputs = 0, weights = 0;
    const auto put = [&](action_kind kind, int& count) {
      if (count < m) emit(kind, rank, count);
      ++count;
    };
    while (forwards < most - 2 * rank) put(action_kind::forward, forwards);
    while (inputs < n) {
      put(action_kind::backward_input, inputs);
      if (inputs > 2 * rank || forwards - weights >= most) put(action_kind::backward_weight, weights);
      if (forwards < n) put(action_kind::forward, forwards);
    }
    while (weights < n) put(action_kind::backward_weight, weights);
  }
};

}  // namespace heddle::inline v0::schedule

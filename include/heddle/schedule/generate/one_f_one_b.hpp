// heddle/schedule/generate/one_f_one_b.hpp: 1F1B: one forward, one backward in turn.
#pragma once

#include <heddle/schedule/stage_map.hpp>

namespace heddle::inline v0::schedule {

/// 1F1B (PipeDream-Flush): rank r runs w = min(p - 1 - r, m) forwards, then alternates one forward and one backward,
/// then the remaining w backwards. Bubble (p - 1)(F + B) as GPipe, but rank r holds only min(p - r, m) activations.
/// Source: Narayanan et al. 2020, arXiv:2006.09503, section 2 (PipeDream-Flush).
template <microbatches_like Microbatches = microbatches<>>
struct one_f_one_b : one_stage_per_rank<Microbatches> {
  using one_stage_per_rank<Microbatches>::one_stage_per_rank;

  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int m = this->microbatch_count();
    const int warm_up = ranks - 1 - rank < m ? ranks - 1 - rank : m;
    for (int i = 0; i < warm_up; ++i) emit(action_kind::forward, rank, i);
    for (int i = warm_up; i < m; ++i) {
      emit(action_kind::forward, rank, i);
      emit(action_kind::backward, rank, i - warm_up);
    }
    for (int i = m - warm_up; i < m; ++i) emit(action_kind::backward, rank, i);
  }
};

}  // namespace heddle::inline v0::schedule

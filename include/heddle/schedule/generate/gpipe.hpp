// heddle/schedule/generate/gpipe.hpp: all forwards, then all backwards.
#pragma once

#include <heddle/schedule/stage_map.hpp>

namespace heddle::inline v0::schedule {

/// GPipe: every rank runs all forwards, then all backwards, both in the order of the microbatches.
/// Bubble (p - 1)(F + B); holds the activations of all m microbatches.
/// Source: Huang et al. 2018, arXiv:1811.06965, section 2.3.
template <microbatches_like Microbatches = microbatches<>>
struct gpipe : one_stage_per_rank<Microbatches> {
  using one_stage_per_rank<Microbatches>::one_stage_per_rank;

  constexpr void generate(int rank, int /*ranks*/, auto& emit) const {
    const int m = this->microbatch_count();
    for (int i = 0; i < m; ++i) emit(action_kind::forward, rank, i);
    for (int i = 0; i < m; ++i) emit(action_kind::backward, rank, i);
  }
};

}  // namespace heddle::inline v0::schedule

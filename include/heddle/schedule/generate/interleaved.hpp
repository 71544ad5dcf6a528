// heddle/schedule/generate/interleaved.hpp: 1F1B over several stages of each rank.
#pragma once

#include <heddle/schedule/generate/looped_stages.hpp>

namespace heddle::inline v0::schedule {

/// Interleaved 1F1B: stage s lives on rank s mod p; microbatches go through the chunks of a rank in groups of g, where
/// m consists of max(1, m / p) groups (p microbatches each if p divides m). Rank r runs (v - 1) g + 2 (p - 1 - r)
/// forwards, then alternates one forward and one backward, then runs the other backwards.
/// Bubble (p - 1)(F + B) / v for v times the messages of 1F1B. The number of chunks v may be `dynamic`.
/// Errors: does not fit if m does not consist of groups of one size.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.
template <microbatches_like Microbatches = microbatches<>, int Chunks = 2>
struct interleaved : looped<Microbatches, Chunks> {
  using looped<Microbatches, Chunks>::looped;

  constexpr int action_count(int ranks) const noexcept { return 2 * this->stages(ranks) * this->microbatch_count(); }
  constexpr bool fits(int ranks) const noexcept { return fits_with(this->microbatch_count(), ranks); }
  static constexpr bool fits_with(int microbatches, int ranks) noexcept {
    return detail::interleaved_order::fits(microbatches, ranks);
  }

  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int v = this->chunks();
    const int total = this->microbatch_count() * v;
    const detail::interleaved_order order(this->microbatch_count(), ranks, v);
    const int wanted = (v - 1) * order.group() + 2 * (ranks - 1 - rank);
    const int warm_up = wanted < total ? wanted : total;
    for (int k = 0; k < total + warm_up; ++k) {
      if (k < total) emit(action_kind::forward, order.forward_stage(k, rank), order.microbatch(k));
      const int b = k - warm_up;
      if (b >= 0) emit(action_kind::backward, order.backward_stage(b, rank), order.microbatch(b));
    }
  }
};

}  // namespace heddle::inline v0::schedule

// heddle/schedule/generate/dual_pipe.hpp: DualPipe: two replicas, opposite directions.
#pragma once

#include <heddle/schedule/generate/dual_pipe_v.hpp>

namespace heddle::inline v0::schedule {

/// DualPipe: half of the microbatches enter at rank 0, half at rank p - 1, through a replica of the model each; rank r
/// and rank p - 1 - r hold the same two parts. A forward of one direction and a backward of the other are a pair that
/// may run side by side. Bubble (p/2 - 1)(pair + B - 3W); every rank holds up to p + 1 activations and twice the
/// parameters. Runs only with p and m even and m >= 2p.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1.
template <microbatches_like Microbatches = microbatches<>>
struct dual_pipe : staged<Microbatches, bidirectional> {
  using staged<Microbatches, bidirectional>::staged;

  constexpr bool fits(int ranks) const noexcept { return fits_with(this->microbatch_count(), ranks); }
  static constexpr bool fits_with(int microbatches, int ranks) noexcept {
    return ranks % 2 == 0 && microbatches % 2 == 0 && microbatches / 2 >= ranks;
  }

  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int half = this->microbatch_count() / 2;
    const detail::dual_lane down{rank, 0}, up{2 * ranks - 1 - rank, half};
    const bool entered_by_down = rank < ranks / 2;
    detail::dual_list(entered_by_down ? down : up, entered_by_down ? up : down, emit)
        .write(entered_by_down ? rank : ranks - 1 - rank, ranks / 2, half);
  }
};

}  // namespace heddle::inline v0::schedule

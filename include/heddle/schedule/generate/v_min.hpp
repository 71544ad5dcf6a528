// heddle/schedule/generate/v_min.hpp: a third of the memory of 1F1B, on two stages per rank in a V.
#pragma once

#include <heddle/schedule/stage_map.hpp>
#include <heddle/schedule/generate/v_block.hpp>

namespace heddle::inline v0::schedule {

/// V-Min: rank r holds stages r and 2p - 1 - r. At most 2(p + 4)/3 activations of one stage live on a rank, about a
/// third of what rank 0 holds in 1F1B. With F = I = W the bubble is less than that of 1F1B: 5.5, 8.5, 13.5, 20.5 and
/// 29.5 times F for p = 4, 6, 8, 12, 16, F being the time of both stages. Where times differ the bubble grows with m,
/// and can be more than that of 1F1B: its order leaves no slack.
/// Source: Qi et al. 2024, arXiv:2405.15362, section 3.2.
template <microbatches_like Microbatches = microbatches<>>
struct v_min : staged<Microbatches, v_shape> {
  using staged<Microbatches, v_shape>::staged;

  constexpr int action_count(int ranks) const noexcept { return 6 * ranks * this->microbatch_count(); }
  constexpr rank_lists lists(int ranks) const {
    const int p = ranks;
    const int wait = p % 3 == 0 ? 2 : 0;
    return detail::v_block_packer(
               p, this->microbatch_count(),
               [=](int r) { return detail::v_block{r, 2 * p - 1 - r, 2 * p + wait + r, 4 * p + wait - 1 - r}; })
        .run();
  }
};

}  // namespace heddle::inline v0::schedule

// heddle/schedule/generate/v_half.hpp: V-Half: half the activations of 1F1B, in a V.
#pragma once

#include <heddle/schedule/stage_map.hpp>
#include <heddle/schedule/generate/v_block.hpp>

namespace heddle::inline v0::schedule {

/// V-Half: rank r holds stages r and 2p - 1 - r. At most p + 2 activations of one stage live on a rank (p + 1 if p is
/// odd), about half of what rank 0 holds in 1F1B. With F = I = W the bubble is about half of that of 1F1B, too: 2.5,
/// 5.5, 8.5, 14.5 and 20.5 times F for p = 4, 6, 8, 12, 16, F being the time of both stages. Made for times that are
/// about equal; where they are not, compare with `automatic`.
/// Source: Qi et al. 2024, arXiv:2405.15362, section 3.2.
template <microbatches_like Microbatches = microbatches<>>
struct v_half : staged<Microbatches, v_shape> {
  using staged<Microbatches, v_shape>::staged;

  constexpr rank_lists lists(int ranks) const {
    const int p = ranks;
    const int wait = p % 2 == 0 ? 3 : 0;
    return detail::v_block_packer(p, this->microbatch_count(),
                                  [=](int r) {
                                    return detail::v_block{2 * r, 3 * p - 2 - r, 3 * p + wait + 2 * r - 1,
                                                           6 * p + wait - 2 - r};
                                  })
        .run();
  }
  constexpr int action_count(int ranks) const noexcept { return 6 * ranks * this->microbatch_count(); }
};

}  // namespace heddle::inline v0::schedule

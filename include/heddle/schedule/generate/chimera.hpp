// heddle/schedule/generate/chimera.hpp: Chimera: two pipelines in opposite directions.
#pragma once

#include <heddle/schedule/generate/list_scheduling.hpp>

namespace heddle::inline v0::schedule {
namespace detail {

struct chimera_rule {
  int ranks;
  static constexpr int forward_time = 1;
  static constexpr int backward_time = 1;
  // As in 1F1B, but no chain has more than p / 2 on their way: one unit of p microbatches of the publication.
  constexpr int most_live(int part) const noexcept { return ranks - part < ranks / 2 ? ranks - part : ranks / 2; }
  // Backwards first, the oldest first, those nearest to the end of their chain first.
  constexpr std::int64_t order(action_kind kind, int part, int microbatch) const noexcept {
    return ((kind == action_kind::backward ? std::int64_t{0} : std::int64_t{1} << 40) +
            std::int64_t{microbatch} * ranks) +
           (ranks - 1 - part);
  }
};

}  // namespace detail

/// Chimera: half of the microbatches run down from rank 0, half up from rank p - 1, through a replica of the model
/// each. Where F = B and p divides m the bubble is (p/2 - 1)(F + B); with m = p and B = 2F it is (p - 2)/(3m/2 + p -
/// 2) of the step, and with more microbatches the gaps between one p of them and the next grow with B - F. A rank
/// holds from p/2 + 1 activations at the ends to p in the middle, and twice the parameters. Runs only with p and m
/// even.
/// Source: Li and Hoefler 2021, arXiv:2107.06925, section 3.
template <microbatches_like Microbatches = microbatches<>>
struct chimera : staged<Microbatches, bidirectional> {
  using staged<Microbatches, bidirectional>::staged;

  constexpr bool fits(int ranks) const noexcept { return fits_with(this->microbatch_count(), ranks); }
  static constexpr bool fits_with(int microbatches, int ranks) noexcept {
    return ranks % 2 == 0 && microbatches % 2 == 0;
  }

  constexpr rank_lists lists(int ranks) const {
    return list_schedule(bidirectional{}, ranks, this->microbatch_count(), detail::chimera_rule{ranks});
  }
  constexpr int action_count(int ranks) const noexcept { return 2 * ranks * this->microbatch_count(); }
};

}  // namespace heddle::inline v0::schedule

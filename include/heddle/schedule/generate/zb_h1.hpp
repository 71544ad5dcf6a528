// heddle/schedule/generate/zb_h1.hpp: ZB-H1: zero bubble with the memory of 1F1B.
#pragma once

#include <heddle/schedule/generate/looped_stages.hpp>

namespace heddle::inline v0::schedule {

/// ZB-H1: 1F1B with backwards split in I and W. The next rank waits for I only; rank r puts its W off by r
/// microbatches, so that all ranks hold min(p, m) activations. Bubble (p - 1)(F + I - W) if W <= I and W <= F.
/// With several chunks per rank (v > 1, "interleaved zero bubble") the order is that of interleaved 1F1B, with a
/// warm-up of (v - 1) g + (p - 1 - r). The number of chunks may be `dynamic`.
/// Errors: with v > 1 does not fit if m does not consist of groups of one size, as in `interleaved`.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 2.1 and figure 3.
template <microbatches_like Microbatches = microbatches<>, int Chunks = 1>
struct zb_h1 : looped<Microbatches, Chunks> {
  using looped<Microbatches, Chunks>::looped;

  constexpr bool fits(int ranks) const noexcept { return fits_with(this->microbatch_count(), ranks); }
  constexpr bool fits_with(int microbatches, int ranks) const noexcept {
    return this->chunks() == 1 || detail::interleaved_order::fits(microbatches, ranks);
  }

  constexpr int action_count(int ranks) const noexcept { return 3 * this->stages(ranks) * this->microbatch_count(); }
  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int m = this->microbatch_count();
    const int v = this->chunks();
    const int total = m * v;
    // One chunk takes its microbatches in order, whatever the groups.
    const detail::interleaved_order order(m, v == 1 ? m : ranks, v);
    const int wanted = (v - 1) * order.group() + ranks - 1 - rank;
    const int warm_up = wanted < total ? wanted : total;
    int weights = 0;
    for (int k = 0; k < total + warm_up; ++k) {
      if (k < total) emit(action_kind::forward, order.forward_stage(k, rank), order.microbatch(k));
      const int inputs = k - warm_up;
      if (inputs < 0) continue;
      emit(action_kind::backward_input, order.backward_stage(inputs, rank), order.microbatch(inputs));
      if (inputs < rank) continue;
      emit(action_kind::backward_weight, order.backward_stage(weights, rank), order.microbatch(weights));
      ++weights;
    }
    for (; weights < total; ++weights)
      emit(action_kind::backward_weight, order.backward_stage(weights, rank), order.microbatch(weights));
  }
};

}  // namespace heddle::inline v0::schedule

// heddle/schedule/generate/zb_v.hpp: ZB-V: zero bubble with 1F1B's memory, in a V.
#pragma once

#include <heddle/schedule/stage_map.hpp>

#include <array>

namespace heddle::inline v0::schedule {

/// ZB-V: rank r holds stages r and 2p - 1 - r, so that the first and the last are on rank 0. With F = I = W nothing
/// idles between a rank's first action and its last: the bubble is the skew of the start, (p - 1) F / 2, F being the
/// time of both stages. All ranks hold 2p activations of one stage, as much as rank 0 in 1F1B.
/// For m < 2p - 1 the schedule of 2p - 1 microbatches without the others.
/// Source: Qi et al. 2023, arXiv:2401.10241; Qi et al. 2024, arXiv:2405.15362 (V-shaped building blocks).
template <microbatches_like Microbatches = microbatches<>>
struct zb_v : staged<Microbatches, v_shape> {
  using staged<Microbatches, v_shape>::staged;

  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int m = this->microbatch_count();
    const int n = m > 2 * ranks - 1 ? m : 2 * ranks - 1;
    std::array<int, 2> forwards{}, inputs{}, weights{};  // of the stage on the way down, and of that on the way up
    const auto put = [&](action_kind kind, std::array<int, 2>& count, std::size_t chunk) {
      if (count[chunk] < m) emit(kind, chunk == 0 ? rank : 2 * ranks - 1 - rank, count[chunk]);
      ++count[chunk];
    };
    const auto f = [&](std::size_t chunk) { put(action_kind::forward, forwards, chunk); };
    const auto i = [&](std::size_t chunk) { put(action_kind::backward_input, inputs, chunk); };
    const auto w = [&](std::size_t chunk) { put(action_kind::backward_weight, weights, chunk); };
    const int below = ranks - rank;
    for (int k = 0; k < 2 * below - 1; ++k) f(0);
    for (int k = 0; k < rank; ++k) f(1), f(0);
    for (int k = 0; k < below; ++k) f(1), i(1), w(1);
    while (forwards[0] < n || forwards[1] < n) {
      if (forwards[0] < n) f(0);
      i(0), w(0), f(1), i(1), w(1);
    }
    for (int k = 0; k < rank; ++k) i(0), i(1);
    for (int k = 0; k < below; ++k) i(0), w(0);
    while (weights[1] < n) w(1);
    while (weights[0] < n) w(0);
  }
  constexpr int action_count(int ranks) const noexcept { return 6 * ranks * this->microbatch_count(); }
};

}  // namespace heddle::inline v0::schedule

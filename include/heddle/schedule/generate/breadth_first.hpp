// heddle/schedule/generate/breadth_first.hpp: all microbatches of a stage before the next.
#pragma once

#include <heddle/schedule/generate/looped_stages.hpp>

namespace heddle::inline v0::schedule {

/// Breadth-first: stage s lives on rank s mod p; a rank runs all m forwards of its first stage, then all of its second,
/// ..; the backwards from the last stage on, all m of each. Bubble (p - 1)(F + B) / v with m >= p; holds the
/// activations of all microbatches. With sharded weights each stage is gathered once per direction instead of once per
/// microbatch.
/// The number of chunks v may be `dynamic`.
/// Source: Lamy-Poirier 2022, arXiv:2211.05953.
template <microbatches_like Microbatches = microbatches<>, int Chunks = 2>
struct breadth_first : looped<Microbatches, Chunks> {
  using looped<Microbatches, Chunks>::looped;

  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int m = this->microbatch_count();
    const int v = this->chunks();
    for (int c = 0; c < v; ++c)
      for (int i = 0; i < m; ++i) emit(action_kind::forward, c * ranks + rank, i);
    for (int c = v - 1; c >= 0; --c)
      for (int i = 0; i < m; ++i) emit(action_kind::backward, c * ranks + rank, i);
  }
};

}  // namespace heddle::inline v0::schedule

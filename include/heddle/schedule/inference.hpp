// heddle/schedule/inference.hpp: pipelines without backwards: prompts in microbatches, and tokens one by one.
#pragma once

#include <heddle/schedule/looped.hpp>

namespace heddle::inline v0::schedule {

/// Forwards only, of m microbatches: prompts (prefill), or an evaluation on the stages of a training run. Stage s lives
/// on rank s mod p; with several chunks the microbatches go through a rank's chunks in groups of at least p (of m if
/// m < p), so that the bubble is (p - 1) F / v with m >= p. The number of chunks may be `dynamic`.
/// Source: Huang et al. 2018, arXiv:1811.06965, section 2.3, forwards; groups as in `interleaved`.
template <microbatches_like Microbatches = microbatches<>, int Chunks = 1>
struct prefill : looped<Microbatches, Chunks> {
  using looped<Microbatches, Chunks>::looped;
  static constexpr table_form form() noexcept { return {.chains = 1, .forward_only = true}; }

  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int m = this->microbatch_count();
    const int rounds = detail::interleaved_order::rounds(m, ranks);
    const int size = m / rounds;
    const int larger = m % rounds;  // so many groups have one microbatch more
    for (int g = 0, first = 0; g < rounds; ++g) {
      const int last = first + size + (g < larger ? 1 : 0);
      for (int c = 0; c < this->chunks(); ++c)
        for (int i = first; i < last; ++i) emit(action_kind::forward, c * ranks + rank, i);
      first = last;
    }
  }
};

/// Tokens one by one: `Steps` passes of q microbatches of sequences (`Microbatches`) through a model of p parts, round
/// robin: pass t of every microbatch, then pass t + 1. A pass needs the token that the last part gave in the pass
/// before. In the table every pass has stages of its own: stage t p + x is pass t of part x, on rank x, and all passes
/// of a part share its weights; what stage t p + p - 1 hands to stage (t + 1) p, from the last rank to the first, are
/// the tokens. Pass 0 may be the prompts (it takes longer), or the first of many tables. `Steps` may be `dynamic`.
/// With q >= p the last rank waits for nothing once it has begun; with q < p all wait p - q forwards per pass.
template <microbatches_like Microbatches = microbatches<>, int Steps = dynamic>
struct decode : looped<Microbatches, Steps> {
  using looped<Microbatches, Steps>::looped;
  static constexpr table_form form() noexcept { return {.chains = 1, .forward_only = true}; }

  constexpr int steps() const noexcept { return this->chunks(); }

  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int q = this->microbatch_count();
    for (int t = 0; t < steps(); ++t)
      for (int i = 0; i < q; ++i) emit(action_kind::forward, t * ranks + rank, i);
  }
};

}  // namespace heddle::inline v0::schedule

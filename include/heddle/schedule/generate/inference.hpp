// heddle/schedule/generate/inference.hpp: pipelines without backwards.
#pragma once

#include <heddle/schedule/generate/looped_stages.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::schedule {

/// Forwards only, of m microbatches: prompts (prefill), or an evaluation on the stages of a training run. Stage s lives
/// on rank s mod p; with several chunks the microbatches go through a rank's chunks in groups of at least p (of m if
/// m < p), so that the bubble is (p - 1) F / v with m >= p. The number of chunks may be `dynamic`.
/// Source: Huang et al. 2018, arXiv:1811.06965, section 2.3, forwards; groups as in `interleaved`.
template <microbatches_like Microbatches = microbatches<>, int Chunks = 1>
struct prefill : looped<Microbatches, Chunks> {
  using looped<Microbatches, Chunks>::looped;
  static constexpr table_form form() noexcept { return {.chains = 1, .forward_only = true}; }

  constexpr void generate(int rank, int ranks, auto& emit) const {
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

  constexpr void generate(int rank, int ranks, auto& emit) const {
    const int q = this->microbatch_count();
    for (int t = 0; t < steps(); ++t)
      for (int i = 0; i < q; ++i) emit(action_kind::forward, t * ranks + rank, i);
  }
};

/// The table of `decode` where microbatch i ends after `steps[i]` passes: its way stops at the last rank in that pass,
/// and the others close ranks.
/// Errors: `schedule_error` if there is no rank or no microbatch, a microbatch has no pass, or the table is too large.
constexpr action_table decode_table(std::span<const int> steps, int ranks) {
  const auto m = static_cast<int>(steps.size());
  if (ranks < 1 || m < 1)
    throw schedule_error("heddle: decoding needs at least one pipeline rank and one microbatch, got " +
                         std::to_string(ranks) + " and " + std::to_string(m));
  int most = 0;
  for (int i = 0; i < m; ++i) {
    const int n = steps[static_cast<std::size_t>(i)];
    if (n < 1)
      throw schedule_error("heddle: decoding: microbatch " + std::to_string(i) + " has " + std::to_string(n) +
                           " passes; each needs at least one");
    if (n > most) most = n;
  }
  if (std::int64_t{most} * ranks > detail::most_cells || std::int64_t{most} * ranks * m > detail::most_cells)
    throw schedule_error("heddle: a schedule of " + std::to_string(most) + " passes of " + std::to_string(m) +
                         " microbatches on " + std::to_string(ranks) + " pipeline ranks is too large");
  const int stages = most * ranks;
  action_table table;
  table.microbatches = m;
  table.form = {.chains = 1, .forward_only = true};
  table.offsets.push_back(0);
  for (int s = 0; s < stages; ++s) {
    table.rank_of_stage.push_back(s % ranks);
    for (int i = 0; i < m; ++i) {
      const int end = steps[static_cast<std::size_t>(i)] * ranks;
      table.next.push_back(s >= end ? not_on_path : s + 1 < end ? s + 1 : -1);
      table.previous.push_back(s >= end ? not_on_path : s - 1);
    }
  }
  for (int r = 0; r < ranks; ++r) {
    for (int t = 0; t < most; ++t)
      for (int i = 0; i < m; ++i)
        if (t < steps[static_cast<std::size_t>(i)]) table.actions.push_back({action_kind::forward, t * ranks + r, i});
    table.offsets.push_back(static_cast<int>(table.actions.size()));
  }
  return table;
}

}  // namespace heddle::inline v0::schedule

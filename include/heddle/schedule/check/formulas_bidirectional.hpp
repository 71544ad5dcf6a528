// heddle/schedule/check/formulas_bidirectional.hpp: formulas of V and two-way tables.
#pragma once

#include <heddle/schedule/generate/chimera.hpp>
#include <heddle/schedule/generate/dual_pipe.hpp>
#include <heddle/schedule/generate/dual_pipe_v.hpp>
#include <heddle/schedule/check/formulas.hpp>
#include <heddle/schedule/generate/hanayo.hpp>
#include <heddle/schedule/generate/v_half.hpp>
#include <heddle/schedule/generate/v_min.hpp>

#include <algorithm>
#include <cstdint>

/// Closed forms as in formulas.hpp, for links that cost no time: `bubble`, `peak_live`, `sends`.
namespace heddle::inline v0::schedule::formula {
namespace detail {

// Slots in which ranks wait because p does not divide m: the last group of microbatches is not full.
constexpr int missing_microbatches(int microbatches, int ranks) noexcept {
  return microbatches % ranks == 0 ? 0 : ranks - microbatches % ranks;
}

// The times of a stage: half of the rank's.
constexpr times of_half(const times& t) noexcept {
  return {t.f / 2, t.i / 2, t.w / 2, t.pair < 0 ? -1 : t.pair / 2};
}

// `depth` ranks to the fold, of which the last waits longest; `count` microbatches of either lane; times of a stage.
constexpr double dual_bubble(int depth, const times& stage) noexcept {
  return (depth - 1) * (stage.overlapped() + stage.b() - 3 * stage.w);
}
constexpr double dual_work(int depth, int count, const times& stage) noexcept {
  const double pairs = 2.0 * (count - depth) - 1;  // of the rank at the fold
  return 2.0 * count * (stage.f + stage.b()) - pairs * (stage.f + stage.b() - stage.overlapped());
}

}  // namespace detail

/// DualPipeV, for F = I = W: (p - 1)(pair + B - 3W) in times of one stage; 2p + 1 activations on every rank, each of
/// one stage; 4 (p - 1) m. The work of a rank is that of the one at the fold, whose 2 (m - p) - 1 pairs save time if
/// they overlap.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1, table 2; its readers cut DualPipe in half.
template <class M>
constexpr double bubble(const dual_pipe_v<M>&, int ranks, const times& t) noexcept {
  return detail::dual_bubble(ranks, detail::of_half(t));
}
/// How long a rank computes in a step, the overlap of pairs counted.
template <class M>
constexpr double work(const dual_pipe_v<M>& when, int ranks, const times& t) noexcept {
  return detail::dual_work(ranks, when.microbatch_count(), detail::of_half(t));
}
/// The most activations, each of one stage and one microbatch, that a rank holds.
template <class M>
constexpr int peak_live(const dual_pipe_v<M>& when, int ranks, int /*rank*/) noexcept {
  return detail::least(2 * ranks + 1, std::int64_t{2} * when.microbatch_count());
}
/// How many messages all ranks send in a step.
template <class M>
constexpr std::int64_t sends(const dual_pipe_v<M>& when, int ranks) noexcept {
  return std::int64_t{4} * (ranks - 1) * when.microbatch_count();
}

/// DualPipe, for F = I = W: (p/2 - 1)(pair + B - 3W); p + 1 on every rank, and parameters twice; 2 (p - 1) m.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1, table 2.
template <class M>
constexpr double bubble(const dual_pipe<M>&, int ranks, const times& t) noexcept {
  return detail::dual_bubble(ranks / 2, t);
}
template <class M>
constexpr double work(const dual_pipe<M>& when, int ranks, const times& t) noexcept {
  return detail::dual_work(ranks / 2, when.microbatch_count() / 2, t);
}
template <class M>
constexpr int peak_live(const dual_pipe<M>& when, int ranks, int /*rank*/) noexcept {
  return (std::min)(ranks + 1, when.microbatch_count());
}
template <class M>
constexpr std::int64_t sends(const dual_pipe<M>& when, int ranks) noexcept {
  return std::int64_t{2} * (ranks - 1) * when.microbatch_count();
}

/// Chimera, for F = B or m = p: (p/2 - 1) 2 max(F, B); if p does not divide m, half a microbatch more for each that is
/// missing. With m >= p rank x holds min(p - x, p/2) + min(x + 1, p/2), and parameters twice; 2 (p - 1) m.
/// Source: Li and Hoefler 2021, arXiv:2107.06925, section 3; the rest measured on the tables.
template <class M>
constexpr double bubble(const chimera<M>& when, int ranks, const times& t) noexcept {
  const int missing = detail::missing_microbatches(when.microbatch_count(), ranks);
  return (ranks / 2 - 1) * 2 * (std::max)(t.f, t.b()) + missing * (t.f + t.b()) / 2;
}
template <class M>
constexpr int peak_live(const chimera<M>&, int ranks, int rank) noexcept {
  return (std::min)(ranks - rank, ranks / 2) + (std::min)(rank + 1, ranks / 2);
}
template <class M>
constexpr std::int64_t sends(const chimera<M>& when, int ranks) noexcept {
  return std::int64_t{2} * (ranks - 1) * when.microbatch_count();
}

/// Hanayo of w waves, for F = B: (p - 1)(F + B) / (2w), and (F + B)(2w - 1) / (2w) more for each microbatch that is
/// missing if p does not divide m; at most min(p, m) times the 2w stages of a rank; 2 (2w p - 2w) m: no message where
/// a wave turns.
/// Source: Liu et al. 2023, arXiv:2308.15762, section 3; the rest measured on the tables.
template <class M, int W>
constexpr double bubble(const hanayo<M, W>& when, int ranks, const times& t) noexcept {
  const int chunks = 2 * when.waves();
  const int missing = detail::missing_microbatches(when.microbatch_count(), ranks);
  return (ranks - 1 + missing * (chunks - 1)) * (t.f + t.b()) / chunks;
}
template <class M, int W>
constexpr int peak_live(const hanayo<M, W>& when, int ranks, int /*rank*/) noexcept {
  return 2 * when.waves() * (std::min)(ranks, when.microbatch_count());
}
template <class M, int W>
constexpr std::int64_t sends(const hanayo<M, W>& when, int ranks) noexcept {
  return std::int64_t{2} * (2 * when.waves() * (ranks - 1)) * when.microbatch_count();
}

/// V-Half, for F = I = W and m > p: (3p - 4) F / 2 if p is odd and (3p - 7) F / 2 if it is even, but at least the skew
/// of the start, (p - 1) F / 2; at most p + 1 (p odd) or p + 2 (p even) activations, each of one stage; 4 (p - 1) m.
/// Source: Qi et al. 2024, arXiv:2405.15362, table 1 and section 4; the exact forms measured on the tables.
template <class M>
constexpr double bubble(const v_half<M>&, int ranks, const times& t) noexcept {
  const int halves = ranks % 2 == 1 ? 3 * ranks - 4 : 3 * ranks - 7;
  return (std::max)(halves, ranks - 1) * t.f / 2;
}
template <class M>
constexpr int peak_live(const v_half<M>& when, int ranks, int /*rank*/) noexcept {
  return detail::least(ranks % 2 == 1 ? ranks + 1 : ranks + 2, std::int64_t{2} * when.microbatch_count());
}
template <class M>
constexpr std::int64_t sends(const v_half<M>& when, int ranks) noexcept {
  return std::int64_t{4} * (ranks - 1) * when.microbatch_count();
}

/// V-Min, for F = I = W and m > p: (4p - 5) F / 2, or (4p - 7) F / 2 if 3 divides p; at most 2 floor((p + 4) / 3)
/// activations, each of one stage; 4 (p - 1) m.
/// Source: Qi et al. 2024, arXiv:2405.15362, table 1 and section 4; the exact forms measured on the tables.
template <class M>
constexpr double bubble(const v_min<M>&, int ranks, const times& t) noexcept {
  return (std::max)(4 * ranks - (ranks % 3 == 0 ? 7 : 5), ranks - 1) * t.f / 2;
}
template <class M>
constexpr int peak_live(const v_min<M>& when, int ranks, int /*rank*/) noexcept {
  return (std::min)((ranks + 4) / 3, when.microbatch_count()) * 2;
}
template <class M>
constexpr std::int64_t sends(const v_min<M>& when, int ranks) noexcept {
  return std::int64_t{4} * (ranks - 1) * when.microbatch_count();
}

}  // namespace heddle::inline v0::schedule::formula

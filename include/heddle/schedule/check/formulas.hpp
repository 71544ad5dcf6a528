// heddle/schedule/check/formulas.hpp: closed formulas of bubble, peak and messages.
#pragma once

#include <heddle/schedule/generate/breadth_first.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_h2.hpp>
#include <heddle/schedule/generate/zb_v.hpp>

#include <algorithm>
#include <cstdint>

/// Closed forms, for links that cost no time; tests compare them with tables and simulations. For each schedule:
/// - `bubble(when, ranks, times)`: time in which a rank idles in a step, the makespan beyond the work of a rank;
/// - `peak_live(when, ranks, rank)`: the most activations, each of one stage and one microbatch, that `rank` holds;
/// - `sends(when, ranks)`: messages of a step over the whole pipeline.
namespace heddle::inline v0::schedule::formula {

/// Times of one microbatch on one rank, all stages of the rank together: a chunk of v takes a v-th of them.
/// `pair` is how long an F and a B take that overlap; if it is negative, as long as one after the other.
struct times {
  double f = 1;
  double i = 1;
  double w = 1;
  double pair = -1;

  constexpr double b() const noexcept { return i + w; }
  constexpr double overlapped() const noexcept { return pair < 0 ? f + b() : pair; }
};

namespace detail {

// Stages on a loop: every boundary is between two ranks, and each microbatch crosses it once up and once down.
constexpr std::int64_t loop_sends(int ranks, int chunks, int microbatches) noexcept {
  return ranks == 1 ? 0 : 2 * (std::int64_t{chunks} * ranks - 1) * microbatches;
}
// Slots of one chunk that a rank waits for the next chunk to have input, and at the end: with m < p also in between.
constexpr int loop_slots(int ranks, int chunks, int microbatches) noexcept {
  return ranks - 1 + (chunks - 1) * (std::max)(ranks - microbatches, 0);
}

// Of two counts the smaller one, which is an int; the other need not be.
constexpr int least(std::int64_t a, std::int64_t b) noexcept {
  return static_cast<int>((std::min)(a, b));
}

}  // namespace detail

/// GPipe: (p - 1)(F + B); all m; 2 (p - 1) m.
/// Source: Huang et al. 2018, arXiv:1811.06965, section 2.3.
template <class M>
constexpr double bubble(const gpipe<M>&, int ranks, const times& t) noexcept {
  return (ranks - 1) * (t.f + t.b());
}
/// The most activations, each of one stage and one microbatch, that a rank holds.
template <class M>
constexpr int peak_live(const gpipe<M>& when, int /*ranks*/, int /*rank*/) noexcept {
  return when.microbatch_count();
}
/// How many messages all ranks send in a step.
template <class M>
constexpr std::int64_t sends(const gpipe<M>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, 1, when.microbatch_count());
}

/// 1F1B: (p - 1)(F + B); min(p - rank, m); 2 (p - 1) m.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
template <class M>
constexpr double bubble(const one_f_one_b<M>&, int ranks, const times& t) noexcept {
  return (ranks - 1) * (t.f + t.b());
}
template <class M>
constexpr int peak_live(const one_f_one_b<M>& when, int ranks, int rank) noexcept {
  return (std::min)(ranks - rank, when.microbatch_count());
}
template <class M>
constexpr std::int64_t sends(const one_f_one_b<M>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, 1, when.microbatch_count());
}

/// Interleaved 1F1B: (p - 1)(F + B) / v with m >= p, and (v - 1)(p - m)(F + B) / v more with m < p;
/// min((v - 1) g + 2 (p - 1 - rank) + 1, m v) with groups of g microbatches (g = p if p divides m); 2 (v p - 1) m.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.
template <class M, int V>
constexpr double bubble(const interleaved<M, V>& when, int ranks, const times& t) noexcept {
  return detail::loop_slots(ranks, when.chunks(), when.microbatch_count()) * (t.f + t.b()) / when.chunks();
}
template <class M, int V>
constexpr int peak_live(const interleaved<M, V>& when, int ranks, int rank) noexcept {
  const int m = when.microbatch_count(), v = when.chunks();
  const int group = schedule::detail::interleaved_order(m, ranks, v).group();
  return detail::least(std::int64_t{v - 1} * group + 2 * (ranks - 1 - rank) + 1, std::int64_t{m} * v);
}
template <class M, int V>
constexpr std::int64_t sends(const interleaved<M, V>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, when.chunks(), when.microbatch_count());
}

/// Breadth-first: (p - 1)(F + B) / v with m >= p, and (v - 1)(p - m)(F + B) / v more with m < p; all m v;
/// 2 (v p - 1) m.
/// Source: Lamy-Poirier 2022, arXiv:2211.05953.
template <class M, int V>
constexpr double bubble(const breadth_first<M, V>& when, int ranks, const times& t) noexcept {
  return detail::loop_slots(ranks, when.chunks(), when.microbatch_count()) * (t.f + t.b()) / when.chunks();
}
template <class M, int V>
constexpr int peak_live(const breadth_first<M, V>& when, int /*ranks*/, int /*rank*/) noexcept {
  return when.microbatch_count() * when.chunks();
}
template <class M, int V>
constexpr std::int64_t sends(const breadth_first<M, V>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, when.chunks(), when.microbatch_count());
}

/// ZB-H1, for W <= I: (p - 1)(max(F, W) + I - W) / v with m >= p; min((v - 1) g + p, m v) on all ranks, with groups of
/// g microbatches as in `interleaved`; 2 (v p - 1) m.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 2.3; for v > 1 and for W > F measured on the tables.
template <class M, int V>
constexpr double bubble(const zb_h1<M, V>& when, int ranks, const times& t) noexcept {
  return (ranks - 1) * ((std::max)(t.f, t.w) + t.i - t.w) / when.chunks();
}
template <class M, int V>
constexpr int peak_live(const zb_h1<M, V>& when, int ranks, int /*rank*/) noexcept {
  const int m = when.microbatch_count(), v = when.chunks();
  const int group = schedule::detail::interleaved_order(m, ranks, v).group();
  return detail::least(std::int64_t{v - 1} * group + ranks, std::int64_t{m} * v);
}
template <class M, int V>
constexpr std::int64_t sends(const zb_h1<M, V>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, when.chunks(), when.microbatch_count());
}

/// ZB-H2, for F = I = W and m >= 2p - 1: (p - 1) F, the skew of the start; min(2p - 1, m) on all ranks; 2 (p - 1) m.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 2.3.
template <class M>
constexpr double bubble(const zb_h2<M>&, int ranks, const times& t) noexcept {
  return (ranks - 1) * t.f;
}
template <class M>
constexpr int peak_live(const zb_h2<M>& when, int ranks, int /*rank*/) noexcept {
  return (std::min)(2 * ranks - 1, when.microbatch_count());
}
template <class M>
constexpr std::int64_t sends(const zb_h2<M>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, 1, when.microbatch_count());
}

/// ZB-V, for F = I = W and m >= 2p - 1: (p - 1) F / 2, the skew of the start; 2p on all ranks, and for any m
/// min(2p, 2m, m + rank + 1); 4 (p - 1) m: the two stages of the last rank need no message.
/// Source: Qi et al. 2023, arXiv:2401.10241; Qi et al. 2024, arXiv:2405.15362.
template <class M>
constexpr double bubble(const zb_v<M>&, int ranks, const times& t) noexcept {
  return (ranks - 1) * t.f / 2;
}
template <class M>
constexpr int peak_live(const zb_v<M>& when, int ranks, int rank) noexcept {
  const std::int64_t m = when.microbatch_count();
  return detail::least(2 * ranks, (std::min)(2 * m, m + rank + 1));
}
template <class M>
constexpr std::int64_t sends(const zb_v<M>& when, int ranks) noexcept {
  return std::int64_t{4} * (ranks - 1) * when.microbatch_count();
}

/// Forwards only: (p - 1) F / v with m >= p, (v - 1)(p - m) F / v more with m < p; nothing is kept; (v p - 1) m.
template <class M, int V>
constexpr double bubble(const prefill<M, V>& when, int ranks, const times& t) noexcept {
  return detail::loop_slots(ranks, when.chunks(), when.microbatch_count()) * t.f / when.chunks();
}
template <class M, int V>
constexpr int peak_live(const prefill<M, V>&, int /*ranks*/, int /*rank*/) noexcept {
  return 0;
}
template <class M, int V>
constexpr std::int64_t sends(const prefill<M, V>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, when.chunks(), when.microbatch_count()) / 2;
}

/// Tokens one by one, F being one pass of one microbatch through one rank: (p - 1) F with q >= p microbatches, and
/// (T - 1)(p - q) F more with q < p; nothing is kept by the table; (T p - 1) q, of which (T - 1) q are tokens.
template <class M, int T>
constexpr double bubble(const decode<M, T>& when, int ranks, const times& t) noexcept {
  return detail::loop_slots(ranks, when.steps(), when.microbatch_count()) * t.f;
}
template <class M, int T>
constexpr int peak_live(const decode<M, T>&, int /*ranks*/, int /*rank*/) noexcept {
  return 0;
}
template <class M, int T>
constexpr std::int64_t sends(const decode<M, T>& when, int ranks) noexcept {
  return detail::loop_sends(ranks, when.steps(), when.microbatch_count()) / 2;
}

/// Time in which every rank computes: m (F + B); of forwards only m F, once per pass.
template <schedule_policy When>
constexpr double work(const When& when, int /*ranks*/, const times& t) noexcept {
  return when.microbatch_count() * (schedule::detail::form_of(when).forward_only ? t.f : t.f + t.b());
}
template <class M, int T>
constexpr double work(const decode<M, T>& when, int /*ranks*/, const times& t) noexcept {
  return static_cast<double>(when.microbatch_count()) * when.steps() * t.f;
}

/// Duration of a step: work + bubble.
template <schedule_policy When>
constexpr double makespan(const When& when, int ranks, const times& t) noexcept {
  return work(when, ranks, t) + bubble(when, ranks, t);
}

/// Bubble over makespan; (p - 1) / (m + p - 1) for GPipe and 1F1B.
template <schedule_policy When>
constexpr double bubble_ratio(const When& when, int ranks, const times& t) noexcept {
  return bubble(when, ranks, t) / makespan(when, ranks, t);
}

}  // namespace heddle::inline v0::schedule::formula

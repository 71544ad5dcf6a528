// heddle/schedule/formulas.hpp: what is known about schedules on paper: bubble, peak activations, messages.
#pragma once

#include <heddle/schedule/gpipe.hpp>
#include <heddle/schedule/one_f_one_b.hpp>

#include <algorithm>
#include <cstdint>

/// Closed forms, for links that cost no time; tests compare them with tables and simulations. `f` and `b` are the times
/// of a forward and of a backward of one microbatch on one rank. Units: of `f` and `b`; counts elsewhere.
namespace heddle::inline v0::schedule::formula {

/// Time in which a rank idles in a step, the makespan beyond m (f + b): (p - 1)(f + b).
/// Source: Huang et al. 2018, arXiv:1811.06965, section 2.3; Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
template <class M>
constexpr double bubble(const gpipe<M>&, int ranks, double f, double b) noexcept {
  return (ranks - 1) * (f + b);
}
template <class M>
constexpr double bubble(const one_f_one_b<M>&, int ranks, double f, double b) noexcept {
  return (ranks - 1) * (f + b);
}

/// The most microbatches whose activations `rank` holds: all m in GPipe, min(p - rank, m) in 1F1B.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
template <class M>
constexpr int peak_live(const gpipe<M>& when, int /*ranks*/, int /*rank*/) noexcept {
  return when.microbatch_count();
}
template <class M>
constexpr int peak_live(const one_f_one_b<M>& when, int ranks, int rank) noexcept {
  return (std::min)(ranks - rank, when.microbatch_count());
}

/// Messages of a step over the whole pipeline: each microbatch crosses each of the p - 1 boundaries once up, once down.
template <class M>
constexpr std::int64_t sends(const gpipe<M>& when, int ranks) noexcept {
  return std::int64_t{2} * (ranks - 1) * when.microbatch_count();
}
template <class M>
constexpr std::int64_t sends(const one_f_one_b<M>& when, int ranks) noexcept {
  return std::int64_t{2} * (ranks - 1) * when.microbatch_count();
}

/// Duration of a step: m (f + b) + bubble.
template <schedule_policy When>
constexpr double makespan(const When& when, int ranks, double f, double b) noexcept {
  return when.microbatch_count() * (f + b) + bubble(when, ranks, f, b);
}

/// Bubble over makespan; (p - 1) / (m + p - 1) for GPipe and 1F1B.
template <schedule_policy When>
constexpr double bubble_ratio(const When& when, int ranks, double f, double b) noexcept {
  return bubble(when, ranks, f, b) / makespan(when, ranks, f, b);
}

}  // namespace heddle::inline v0::schedule::formula

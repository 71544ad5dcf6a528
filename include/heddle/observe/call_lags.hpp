// heddle/observe/call_lags.hpp: lateness of ranks in collectives, and who makes others wait.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/observer.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::observe {

/// How late a rank entered a collective. Units: nanoseconds.
struct call_lag {
  int rank = -1;
  int step = -1;
  const char* name = "";
  std::uint64_t flow = 0;
  std::int64_t lag_ns = 0;  ///< after the median of the other members; below 0: before it
  std::int64_t own_ns = 0;  ///< of that, what is not explained by waits for others in its calls before
};
/// The lags of all collectives of which at least two members are among the events, in the order of entry. Members are joined by
/// `event::flow`; exits say nothing, as all leave together. A rank that waited in a call for its last member is so much late by the fault
/// of others, until it waits again. Events of several hosts must have one clock (`observe::gather`).
HEDDLE_INLINE std::vector<call_lag> call_lags(std::span<const event> events);

/// A rank's medians over its calls.
struct rank_lateness {
  int rank = -1;
  std::int64_t calls = 0;
  std::int64_t lag_ns = 0;
  std::int64_t own_ns = 0;
};
/// All ranks that have lags, the one that is latest by itself first.
HEDDLE_INLINE std::vector<rank_lateness> latest_ranks(std::span<const call_lag> lags);
/// When a rank is a root: the median of its own lateness is above `least_ns`, and above `deviations` times 1.4826 times the median
/// distance of all ranks' own lateness from their medians.
struct lateness_rule {
  std::int64_t least_ns = 50'000;
  double deviations = 3;
};
/// The ranks that make others wait, the latest first. Those that are late because they wait themselves are not among them.
HEDDLE_INLINE std::vector<rank_lateness> late_roots(std::span<const call_lag> lags, lateness_rule rule = {});
/// "rank 3 enters its collectives 1.2 ms after the others, by itself (40 calls)"
HEDDLE_INLINE std::string to_string(const rank_lateness& late);

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/call_lags.hpp>
#endif

// heddle/comm/options.hpp: what a launch can be told about waiting and checking.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <chrono>

namespace heddle::inline v0 {

/// Whether ranks compare their calls before they run them. `on` (the default) costs one comparison per rank and call.
enum class checking : bool { off, on };

/// Units: as the types say.
struct launch_options {
  /// How long a rank waits for another before it reports who waits where. Zero: for ever.
  std::chrono::milliseconds timeout{300'000};
  /// With `checking::off` ranks that disagree about a call may read or write past each other's buffers.
  checking check = checking::on;
  /// How long a rank polls at most before it sleeps, letting others have the core in between; less while polling has been
  /// in vain. Negative: 50 microseconds, about what it takes to wake a sleeper.
  std::chrono::microseconds spin{-1};
  /// The number of ranks that must be there, as an outside source knows it; 0 for as many as the mesh has.
  int ranks = 0;
};

namespace detail {
// A timeout that clocks can count with: ten years for all that is longer, `milliseconds::max()` among them.
constexpr std::chrono::milliseconds countable(std::chrono::milliseconds timeout) {
  return (std::min)(timeout, std::chrono::milliseconds(std::chrono::hours(10 * 365 * 24)));
}
}  // namespace detail

}  // namespace heddle::inline v0

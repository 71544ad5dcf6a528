// heddle/comm/options.hpp: options of a launch: waiting, checks and cores.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/durations.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0 {

/// Whether ranks compare their calls before they run them, and prove the rounds of algorithms that are not heddle's when
/// they are first called. `on` (the default) costs one comparison per rank and call. `poison` does as `on`, and fills the results of
/// collectives that are started with NaN until they are there (`threads` and `mpi`, element types that have one): what is computed from
/// results that are read too early is NaN, too. It costs a store of each result, and a copy of each input that is part of its result.
enum class checking : std::uint8_t { off, on, poison };

/// Whether each rank that is a thread stays on its share of the processor cores.
///   automatic  all but rank 0, where each share has `threads_per_rank` cores and no other launch runs in the process;
///              rank 0, the calling thread, keeps its cores, as threads that it starts may outlive the launch; the
///              environment variable HEDDLE_BIND (`on`, `off`, `automatic`) may decide otherwise
///   off        ranks run where the system puts them
///   on         always, rank 0 too: more ranks than cores share them, and so do launches side by side
enum class binding : std::uint8_t { automatic, off, on };

/// Where messages of memory that the host cannot use (that of a device) are taken from by a transport that might take them from there.
///   automatic  from the device where the transport says that it can, else from copies in the host's memory; the environment variable
///              HEDDLE_DEVICE_MESSAGES (`direct`, `staged`, `automatic`) may decide otherwise
///   direct     from the device. An error where the transport says that it cannot; believed where it cannot be asked
///   staged     from copies in the host's memory
enum class device_messages : std::uint8_t { automatic, direct, staged };

/// Settings of a launch: timeouts, checks, binding of threads to cores.
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
  /// Binding of ranks that are threads (`threads`): the cores that this process may use are shared out evenly, whole
  /// physical cores where there are enough, and a bound rank with all threads that it starts runs on its share.
  binding bind = binding::automatic;
  /// How many threads a rank computes with: `binding::automatic` leaves ranks free that need more cores than a share has.
  int threads_per_rank = 1;
  /// Messages of memory that the host cannot use (`mpi`).
  device_messages device = device_messages::automatic;
  /// A folder in which each rank keeps its last `flight_calls` calls, in a file that outlives the rank: `observe::read_flights` says
  /// from them who is missing, stuck or gone. Empty: none, or where the environment variable HEDDLE_FLIGHT says ("folder:256").
  std::string flight{};
  int flight_calls = 256;
};

/// A timeout of so many seconds, for `launch_options::timeout`: in whole milliseconds, rounded up, so that 0 alone is for ever. At most
/// 10^9 seconds. Errors: `config_error` for a negative number, or none.
inline std::chrono::milliseconds timeout_of(double seconds) {
  if (!(seconds >= 0))
    throw config_error("heddle: a timeout must be a number of seconds from 0 on (0: for ever), got " +
                       number_text(seconds));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil((std::min)(seconds, 1e9) * 1000)));
}

namespace detail {
// A timeout that clocks can count with: ten years for all that is longer, `milliseconds::max()` among them.
constexpr std::chrono::milliseconds countable(std::chrono::milliseconds timeout) {
  return (std::min)(timeout, std::chrono::milliseconds(std::chrono::hours(10 * 365 * 24)));
}
}  // namespace detail

}  // namespace heddle::inline v0

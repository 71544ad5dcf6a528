// heddle/plan/impl/offload_amount.hpp: bodies of heddle/plan/offload_amount.hpp.
#pragma once

#include <heddle/plan/offload_amount.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE void require_offload_scopes(std::span<const offload_scope> scopes, double bytes_per_second) {
  bool good = bytes_per_second >= 0;  // infinite: a store that costs nothing
  for (const offload_scope& s : scopes) good = good && is_measured(s.bytes) && is_measured(s.seconds);
  if (!good)
    throw config_error("heddle: bytes, seconds and bytes per second of offloading are numbers that are not negative");
}

}  // namespace detail
}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {

HEDDLE_INLINE double needed_bytes_per_second(std::span<const offload_scope> scopes, std::size_t n) {
  if (n >= scopes.size())
    throw config_error("heddle: there is no scope " + std::to_string(n) + " of " + std::to_string(scopes.size()));
  double forward = 0, bytes = 0, seconds = 0;
  for (const offload_scope& s : scopes) forward += s.seconds;
  for (std::size_t i = 0; i < n; ++i) {
    bytes += scopes[i].bytes;
    seconds += scopes[i].seconds;
  }
  bytes += 2 * scopes[n].bytes;
  const double window = 3 * forward - 2 * seconds;
  if (bytes == 0) return 0;
  return window > 0 ? bytes / window : std::numeric_limits<double>::infinity();
}

HEDDLE_INLINE offload_amount amount_to_offload(std::span<const offload_scope> scopes, double bytes_per_second) {
  detail::require_offload_scopes(scopes, bytes_per_second);
  offload_amount a;
  a.first_kept = scopes.size();
  for (std::size_t n = 0; n < scopes.size(); ++n)
    if (needed_bytes_per_second(scopes, n) >= bytes_per_second * (1 - 1e-9) && scopes[n].bytes > 0) {
      a.first_kept = n;
      break;
    }
  for (std::size_t n = 0; n < scopes.size(); ++n) (n < a.first_kept ? a.bytes : a.kept_bytes) += scopes[n].bytes;
  return a;
}

HEDDLE_INLINE double most_waiting_bytes(std::span<const offload_scope> scopes, std::size_t n, double bytes_per_second) {
  if (n >= scopes.size())
    throw config_error("heddle: there is no scope " + std::to_string(n) + " of " + std::to_string(scopes.size()));
  double seconds = 2 * scopes[n].seconds;
  for (std::size_t i = n + 1; i < scopes.size(); ++i) seconds += 3 * scopes[i].seconds;
  return (seconds > 0 ? bytes_per_second * seconds : 0) - scopes[n].bytes;  // in no time nothing, at any rate
}

HEDDLE_INLINE bool read_now(std::size_t running, std::size_t candidate, std::size_t least, double queued_seconds,
                            std::span<const double> read_seconds, std::span<const double> backward_seconds) {
  if (candidate >= running) return false;
  if (running - candidate <= least) return true;
  // The next backward begins when the running one has ended, which may have to wait for its own read.
  if (queued_seconds >= backward_seconds[running] + read_seconds[running]) return false;
  double until = 0;  // from now to the beginning of the backward of scope j
  for (std::size_t i = candidate + 1; i <= running; ++i) until += backward_seconds[i];
  double end = (std::max)(backward_seconds[running], queued_seconds);  // if its read starts one backward later
  for (std::size_t j = candidate + 1; j-- > 0;) {
    end += read_seconds[j];
    if (end > until * (1 + 1e-9)) return true;
    until += backward_seconds[j];
  }
  return false;
}

}  // namespace heddle::inline v0::plan

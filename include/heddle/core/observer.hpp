// heddle/core/observer.hpp: the observer hook: reports of running code, free when off.
#pragma once

#include <heddle/core/config.hpp>

#include <concepts>
#include <cstdint>
#if defined(__linux__)
#include <time.h>
#else
#include <chrono>
#endif

namespace heddle::inline v0 {

/// What a rank was doing.
enum class activity : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send,
  recv,
  collective,
  optimizer,
  data,
  checkpoint,
  other
};

/// One thing a rank did, or waited for. Times are nanoseconds of `std::chrono::steady_clock`.
/// Fields that do not apply are -1; `flow` joins a send with its receive and is 0 when there is nothing to join.
struct event {
  activity kind = activity::other;
  const char* name = "";  ///< static storage duration
  int rank = -1;
  int step = -1;
  int stage = -1;
  int microbatch = -1;
  int peer = -1;  ///< world rank of the other side of a send or receive
  std::int64_t bytes = -1;
  std::uint64_t flow = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The kind of policies that observe: see `observer`.
struct observer_kind {};

/// Receives events. `enabled` is a constant: where it is false the hooks compile to nothing.
template <class O>
concept observer = requires(O& o, const event& e) {
  { O::enabled } -> std::convertible_to<bool>;
  o.record(e);
};

/// The observer that is off.
struct null_observer {
  using kind = observer_kind;
  static constexpr bool enabled = false;
  constexpr void record(const event&) const noexcept {}
};

/// Nanoseconds of the steady clock, the time base of every event.
inline std::int64_t now_ns() {
#if defined(__linux__)  // where this is the steady clock; <chrono> costs every program a third of a second to compile
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
#else
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
#endif
}

/// Runs `work` and records how long it took. With an observer that is off this is a plain call. One with members `begin(event)` and
/// `end(event)` is told before and after on the same thread, nested as the work is; `end` also if the work throws. One with
/// `around(event, work)` runs the work itself, and gives what it gives: what it adds is part of the time (`testing::faults`).
template <observer O, class Work>
decltype(auto) observed(O& observer, event what, Work&& work) {
  if constexpr (!O::enabled) {
    return static_cast<Work&&>(work)();
  } else {
    struct recorder {
      O& to;
      event e;
      ~recorder() {
        e.end_ns = now_ns();
        to.record(e);
        if constexpr (requires { to.end(e); }) to.end(e);
      }
    } guard{observer, what};
    if constexpr (requires { observer.begin(what); }) observer.begin(what);
    guard.e.begin_ns = now_ns();
    if constexpr (requires { observer.around(what, static_cast<Work&&>(work)); })
      return observer.around(what, static_cast<Work&&>(work));
    else
      return static_cast<Work&&>(work)();
  }
}

}  // namespace heddle::inline v0

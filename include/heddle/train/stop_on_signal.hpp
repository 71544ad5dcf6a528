// heddle/train/stop_on_signal.hpp: ends a run after its step on SIGINT or SIGTERM.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <signal.h>
#include <time.h>

namespace heddle::inline v0::train {

namespace detail {

// All that the signal handler reads and writes.
struct stop_signals {
  static constexpr std::array<int, 2> watched{SIGINT, SIGTERM};
  std::atomic<bool> asked{false};
  std::atomic<int> received{0};
  std::atomic<bool> in_use{false};
  std::atomic<std::int64_t> grace_ns{0};  // 0: none
  std::atomic<bool> is_running_out{false};
  ::timer_t timer{};  // there while in_use
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);
inline stop_signals the_stop_signals;

// Touches no handler but its own at the second signal, which is raised again and ends the process when this returns.
// That of the timer, when the grace period is over, counts as the second one.
HEDDLE_INLINE void on_stop_signal(int number, ::siginfo_t* info, void*) noexcept;

}  // namespace detail

/// While one lives, the first SIGINT (Ctrl-C) or SIGTERM of this process sets `flag()`; a run whose `options.stop`
/// points there ends after the running step, with the work that is due after a last step, such as a save. The second
/// signal ends the process at once, as the first one does without this object. A signal that was ignored stays ignored.
/// At its end the handlers are what they were. At most one at a time in a process; ranks that are processes have one
/// each.
/// With a grace period a step that does not end by itself after the first signal, as one that waits for ever, ends the
/// process: after those seconds the same signal ends it at once, unless `step_ended` was called before.
/// Errors: `config_error` if there is another one.
class stop_on_signal {
 public:
  /// `grace_seconds`: 0, no limit.
  explicit stop_on_signal(double grace_seconds = 0);
  stop_on_signal(stop_on_signal&&) = delete;
  ~stop_on_signal();

  /// The grace period of a signal that comes from now on: when it is known how long steps take, say.
  static void set_grace(double seconds) noexcept;
  /// The step that ran at the first signal has ended: what is left to do, such as a save, may take as long as it needs.
  static void step_ended() noexcept;

  /// For `options.stop`. There with or without an object; false until a signal has come to one.
  static const std::atomic<bool>& flag() noexcept { return detail::the_stop_signals.asked; }
  /// The signal that came, or 0.
  static int received() noexcept { return detail::the_stop_signals.received; }

 private:
  std::array<struct sigaction, 2> before_{};
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/stop_on_signal.hpp>
#endif

// heddle/train/stop_on_signal.hpp: lets the first SIGINT or SIGTERM end a training run after its step.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include <signal.h>

namespace heddle::inline v0::train {

namespace detail {

// All that the signal handler reads and writes.
struct stop_signals {
  static constexpr std::array<int, 2> watched{SIGINT, SIGTERM};
  std::atomic<bool> asked{false};
  std::atomic<int> received{0};
  std::atomic<bool> in_use{false};
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
inline stop_signals the_stop_signals;

// Touches no handler but its own at the second signal, which is raised again and ends the process when this returns.
HEDDLE_INLINE void on_stop_signal(int number) noexcept;

}  // namespace detail

/// While one lives, the first SIGINT (Ctrl-C) or SIGTERM of this process sets `flag()`; a run whose `options.stop`
/// points there ends after the running step, with the work that is due after a last step, such as a save. The second
/// signal ends the process at once, as the first one does without this object. A signal that was ignored stays ignored.
/// At its end the handlers are what they were. At most one at a time in a process; ranks that are processes have one
/// each.
/// Errors: `config_error` if there is another one.
class stop_on_signal {
 public:
  stop_on_signal();
  stop_on_signal(stop_on_signal&&) = delete;
  ~stop_on_signal();

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

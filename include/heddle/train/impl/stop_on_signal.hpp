// heddle/train/impl/stop_on_signal.hpp: bodies of heddle/train/stop_on_signal.hpp.
#pragma once

#include <heddle/train/stop_on_signal.hpp>
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
#include <unistd.h>

namespace heddle::inline v0::train {
namespace detail {

HEDDLE_INLINE void set_stop_timer(std::int64_t ns) noexcept {
  constexpr std::int64_t second = 1000000000;
  ::itimerspec when{};
  when.it_value.tv_sec = static_cast<::time_t>(ns / second);
  when.it_value.tv_nsec = static_cast<long>(ns % second);
  ::timer_settime(the_stop_signals.timer, 0, &when, nullptr);  // may be called in a handler
}

HEDDLE_INLINE void on_stop_signal(int number, ::siginfo_t* info, void*) noexcept {
  const int code = errno;
  stop_signals& s = the_stop_signals;
  bool ends = false;
  if (info != nullptr && info->si_code == SI_TIMER) {
    ends = s.is_running_out;  // false: the step has ended meanwhile
    if (ends) {
      static constexpr char text[] =
          "heddle: the step did not end after the signal; the program ends without a save of it\n";
      if (::write(STDERR_FILENO, text, sizeof text - 1) < 0) ends = true;
      number = s.received;
    }
  } else {
    int none = 0;
    s.received.compare_exchange_strong(none, number);
    ends = s.asked.exchange(true);
    if (!ends && s.grace_ns > 0) {
      s.is_running_out = true;
      set_stop_timer(s.grace_ns);
    }
  }
  if (ends) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  errno = code;
}

}  // namespace detail
}  // namespace heddle::inline v0::train

namespace heddle::inline v0::train {

HEDDLE_INLINE void stop_on_signal::set_grace(double seconds) noexcept {
  constexpr double most = 1e9;
  detail::the_stop_signals.grace_ns =
      seconds > 0 && seconds <= most ? static_cast<std::int64_t>(seconds * 1e9) : std::int64_t{0};
}

HEDDLE_INLINE void stop_on_signal::step_ended() noexcept {
  detail::stop_signals& s = detail::the_stop_signals;
  if (s.is_running_out.exchange(false)) detail::set_stop_timer(0);
}

HEDDLE_INLINE stop_on_signal::stop_on_signal(double grace_seconds) {
  detail::stop_signals& s = detail::the_stop_signals;
  if (s.in_use.exchange(true))
    throw config_error("heddle: there is a stop_on_signal in this process already; one serves all of its ranks");
  s.received = 0;
  s.asked = false;
  s.is_running_out = false;
  set_grace(grace_seconds);
  struct sigaction term{};
  ::sigaction(SIGTERM, nullptr, &term);
  struct sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = term.sa_handler == SIG_IGN ? SIGINT : SIGTERM;  // one that gets to the handler
  if (::timer_create(CLOCK_MONOTONIC, &event, &s.timer) != 0) {
    const int code = errno;
    s.in_use = false;
    throw config_error(std::string("heddle: stop_on_signal has no timer: ") + std::strerror(code));
  }
  for (std::size_t i = 0; i < s.watched.size(); ++i) {
    struct sigaction action{};
    action.sa_sigaction = &detail::on_stop_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    for (const int other : s.watched) ::sigaddset(&action.sa_mask, other);
    ::sigaction(s.watched[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(s.watched[i], &action, nullptr);
  }
}

HEDDLE_INLINE stop_on_signal::~stop_on_signal() {
  detail::stop_signals& s = detail::the_stop_signals;
  step_ended();
  ::timer_delete(s.timer);
  for (std::size_t i = 0; i < s.watched.size(); ++i)
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(s.watched[i], &before_[i], nullptr);
  s.in_use = false;
}

}  // namespace heddle::inline v0::train

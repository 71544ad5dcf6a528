// heddle/train/impl/stop_on_signal.hpp: bodies of heddle/train/stop_on_signal.hpp.
#pragma once

#include <heddle/train/stop_on_signal.hpp>
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

HEDDLE_INLINE void on_stop_signal(int number) noexcept {
  const int code = errno;
  stop_signals& s = the_stop_signals;
  int none = 0;
  s.received.compare_exchange_strong(none, number);
  if (s.asked.exchange(true)) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  errno = code;
}

}  // namespace detail
}  // namespace heddle::inline v0::train

namespace heddle::inline v0::train {

HEDDLE_INLINE stop_on_signal::stop_on_signal() {
  detail::stop_signals& s = detail::the_stop_signals;
  if (s.in_use.exchange(true))
    throw config_error("heddle: there is a stop_on_signal in this process already; one serves all of its ranks");
  s.received = 0;
  s.asked = false;
  for (std::size_t i = 0; i < s.watched.size(); ++i) {
    struct sigaction action{};
    action.sa_handler = &detail::on_stop_signal;
    action.sa_flags = SA_RESTART;
    for (const int other : s.watched) ::sigaddset(&action.sa_mask, other);
    ::sigaction(s.watched[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(s.watched[i], &action, nullptr);
  }
}

HEDDLE_INLINE stop_on_signal::~stop_on_signal() {
  detail::stop_signals& s = detail::the_stop_signals;
  for (std::size_t i = 0; i < s.watched.size(); ++i)
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(s.watched[i], &before_[i], nullptr);
  s.in_use = false;
}

}  // namespace heddle::inline v0::train

// heddle/core/impl/file_size_signal.hpp: bodies of heddle/core/file_size_signal.hpp.
#pragma once

#include <heddle/core/file_size_signal.hpp>
#include <heddle/core/config.hpp>

#include <cerrno>
#include <cstring>
#include <string>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

namespace heddle::inline v0 {

HEDDLE_INLINE file_size_signal_off::file_size_signal_off() noexcept {
  ::sigemptyset(&signal_);
  ::sigaddset(&signal_, SIGXFSZ);
  pending_before_ = is_pending();
  blocked_ = ::pthread_sigmask(SIG_BLOCK, &signal_, &before_) == 0;
}

HEDDLE_INLINE file_size_signal_off::~file_size_signal_off() {
  if (!blocked_) return;
  const int code = errno;
  if (!pending_before_ && is_pending()) {  // it was sent to this thread, by its write
#if defined(__APPLE__)
    int taken = 0;
    ::sigwait(&signal_, &taken);
#else
    const ::timespec at_once{};
    ::sigtimedwait(&signal_, nullptr, &at_once);
#endif
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = code;
}

HEDDLE_INLINE std::string write_error_text(int code) {
  std::string text = std::strerror(code);
  ::rlimit limit{};
  if (code == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += " (the file size limit of this process is ";
    text += std::to_string(limit.rlim_cur);
    text += " bytes: ulimit -f)";
  }
  return text;
}

}  // namespace heddle::inline v0

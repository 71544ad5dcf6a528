// heddle/core/file_size_signal.hpp: keeps SIGXFSZ from ending the process while one thread writes a file.
#pragma once

#include <heddle/core/config.hpp>

#include <cerrno>
#include <cstring>
#include <string>

#include <signal.h>
#include <sys/resource.h>
#include <time.h>

namespace heddle::inline v0::detail {

// While one lives, a write of this thread beyond the limit of file sizes (`ulimit -f`) fails with EFBIG. Without one it
// ends the process by SIGXFSZ. Handlers and other threads are left as they are; errno, too.
class file_size_signal_off {
 public:
  file_size_signal_off() noexcept {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    pending_before_ = is_pending();
    blocked_ = ::pthread_sigmask(SIG_BLOCK, &signal_, &before_) == 0;
  }
  file_size_signal_off(const file_size_signal_off&) = delete;
  file_size_signal_off& operator=(const file_size_signal_off&) = delete;
  ~file_size_signal_off() {
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

 private:
  static bool is_pending() noexcept {
    ::sigset_t pending;
    ::sigemptyset(&pending);
    return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGXFSZ) == 1;
  }

  ::sigset_t signal_{}, before_{};
  bool pending_before_ = false;
  bool blocked_ = false;
};

// The system's text for the code of a failed write. For EFBIG with the limit that was reached.
inline std::string write_error_text(int code) {
  std::string text = std::strerror(code);
  ::rlimit limit{};
  if (code == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += " (the file size limit of this process is ";
    text += std::to_string(limit.rlim_cur);
    text += " bytes: ulimit -f)";
  }
  return text;
}

}  // namespace heddle::inline v0::detail

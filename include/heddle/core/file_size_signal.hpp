// heddle/core/file_size_signal.hpp: keeps SIGXFSZ from ending the process in a write.
#pragma once

#include <heddle/core/config.hpp>

#include <cerrno>
#include <cstring>
#include <string>

#include <signal.h>
#include <sys/resource.h>
#include <time.h>

namespace heddle::inline v0 {

/// Keeps SIGXFSZ away: while one lives, a write of this thread beyond the limit of file sizes (`ulimit -f`) fails with EFBIG. Without one it
/// ends the process by SIGXFSZ. Handlers and other threads are left as they are; errno, too.
class file_size_signal_off {
 public:
  file_size_signal_off() noexcept;
  file_size_signal_off(const file_size_signal_off&) = delete;
  file_size_signal_off& operator=(const file_size_signal_off&) = delete;
  ~file_size_signal_off();

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

/// The system's text for the code of a failed write. For EFBIG with the limit that was reached.
HEDDLE_INLINE std::string write_error_text(int code);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/core/impl/file_size_signal.hpp>
#endif

// heddle/comm/mpi/session.hpp: initialises and finalises MPI.
#pragma once

#include <heddle/comm/mpi/api.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace heddle::inline v0 {

/// While it lives MPI can be used: it initialises MPI, and ends it again, unless somebody else has done so already.
/// `launch<hd::mpi>` needs none: without one, its first call initialises MPI and the end of the process ends it.
///
/// When an exception passes its end, or the last launch has returned 1 for an error that other processes may not have, and
/// they do not end MPI within 3 seconds, it says so and ends the job.
///
/// MPI is asked for `MPI_THREAD_FUNNELED`: only the thread that initialised it calls it. Whoever needs more initialises
/// MPI before; communicators may then be used by as many threads as that level allows, each by one at a time.
/// Errors: `comm_error` if MPI has been ended before (it cannot be started again), or offers less than that level.
class mpi_session {
 public:
  mpi_session() : mpi_session(0, nullptr) {}
  mpi_session(int argc, char** argv) {
    int started = 0, ended = 0;
    detail::mpi_check(MPI_Initialized(&started), "MPI_Initialized");
    detail::mpi_check(MPI_Finalized(&ended), "MPI_Finalized");
    if (ended != 0) throw comm_error("heddle: MPI has been finalised, and cannot be started twice in a process");
    if (started == 0) {
      int level = MPI_THREAD_SINGLE;
      detail::mpi_check(argc > 0 ? MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level)
                                 : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level),
                        "MPI_Init_thread");
      mine_ = true;
    }
  }
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  ~mpi_session() {
    if (!mine_ || !detail::mpi_usable()) return;
    const bool passes = std::uncaught_exceptions() > exceptions_;
    if (!passes && !failed()) {
      MPI_Finalize();
      return;
    }
    // Other processes may wait for this one in other calls than MPI_Finalize, and for ever.
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::thread guard([&] {
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, std::chrono::seconds(3), [&] { return done; })) return;
      const char* const what = passes ? "an exception" : "the error of a launch";
      std::fprintf(stderr,
                   "heddle: rank %d: %s ends MPI here, and other processes did not end it within 3 s: the job is "
                   "ended\n",
                   rank, what);
      std::fflush(stderr);
      std::_Exit(1);
    });
    MPI_Finalize();
    {
      const std::lock_guard lock(mutex);
      done = true;
    }
    changed.notify_one();
    guard.join();
  }

  /// Whether the last launch of this process has failed, and others may wait for it in vain.
  static void last_launch_failed(bool yes) noexcept { failed() = yes; }
  /// Whether this object initialised MPI.
  bool started_mpi() const noexcept { return mine_; }
  /// MPI's thread level: `MPI_THREAD_SINGLE`, `FUNNELED`, `SERIALIZED` or `MULTIPLE`.
  static int thread_level() {
    int level = MPI_THREAD_SINGLE;
    detail::mpi_check(MPI_Query_thread(&level), "MPI_Query_thread");
    return level;
  }
  /// "Open MPI v4.1.4, ...": what MPI says of itself.
  static std::string library_version() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
    int length = 0;
    detail::mpi_check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
    return std::string(text, static_cast<std::size_t>(length));
  }

 private:
  // Needs no destructor: a session may be static, and end after other such objects.
  static bool& failed() noexcept {
    static bool yes = false;
    return yes;
  }

  bool mine_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace heddle::inline v0

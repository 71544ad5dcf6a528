// heddle/comm/mpi/watchdog.hpp: ends the job with a report when a process or call is stuck.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/mpi/board.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#if defined(SMPI_H)
#include <simgrid/s4u/Engine.hpp>

#include <cstdio>
#include <cstdlib>
#elif defined(__linux__)
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace heddle::inline v0::detail {

// "in all_reduce of 32 bytes", "in recv of 8 bytes from rank 2 of its group": what a rank shows of its call.
inline std::string describe(const board_slot& slot) {
  const int state = slot.state.load(std::memory_order_acquire);
  if (state == board_slot::away) return "is on another host";
  if (state != board_slot::inside) return "its body has returned";
  const std::uint64_t call = slot.call.load(std::memory_order_acquire);
  if (call == 0) return "is not waiting for anyone";
  if (const std::string text = mpi_board::read_text(slot); !text.empty()) return text;
  const auto what = static_cast<comm_operation>((call & 0xff) - 1);
  const int other = static_cast<int>(call >> 8) - 1;
  std::string text = "in ";
  text += to_string(what);
  text += " of " + std::to_string(slot.bytes.load(std::memory_order_relaxed)) + " bytes";
  if (what == comm_operation::send) text += " to";
  if (what == comm_operation::recv) text += " from";
  if (what != comm_operation::send && what != comm_operation::recv && other >= 0) text += " with root";
  if (other >= 0) text += " rank " + std::to_string(other) + " of its group";
  return text;
}

inline std::string who_waits_where(const mpi_board& board) {
  std::string text;
  for (int r = 0; r < board.size(); ++r) {
    text += "\n  rank " + std::to_string(r) + ": ";
    text += describe(board.slot(r));
  }
  return text;
}

#if defined(SMPI_H)

// Among virtual ranks: SimGrid finds out when no rank can go on, kills all of them, and ends with status 0. Before it
// does so the first rank's watchdog prints who failed and who waits where, and ends the simulator with status 1.
class mpi_watchdog {
 public:
  mpi_watchdog(const mpi_board& board, int rank, std::chrono::milliseconds) : board_(board), rank_(rank) {
    if (rank_ != 0) return;
    static const bool told = [] {  // each virtual rank has variables of its own
      simgrid::s4u::Engine::on_deadlock_cb([] {
        if (!boards().empty()) end_job(*boards().back());
      });
      return true;
    }();
    (void)told;
    boards().push_back(&board);
  }
  mpi_watchdog(const mpi_watchdog&) = delete;
  mpi_watchdog& operator=(const mpi_watchdog&) = delete;
  ~mpi_watchdog() {
    if (rank_ == 0) std::erase(boards(), &board_);
  }

 private:
  static std::vector<const mpi_board*>& boards() {
    static std::vector<const mpi_board*> all;
    return all;
  }
  [[noreturn]] static void end_job(const mpi_board& board) {
    std::string text;
    if (const int failed = board.first_failed(); failed >= 0) {
      text += "heddle: rank " + std::to_string(failed) + ": ";
      text += board.head().failure;
      text += "\nheddle: other ranks wait for ever: the job is ended:";
    } else {
      text += "heddle: ranks wait for what never comes: the job is ended:";
    }
    text += who_waits_where(board) + "\n";
    std::fflush(nullptr);
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
    std::_Exit(1);
  }

  const mpi_board& board_;
  int rank_;
};

#else

// Runs from its construction to its destruction, and calls nothing of MPI's: it sleeps until a process of this host ends,
// and looks now and then whether its own rank has been in one call for longer than the timeout. In both cases it prints
// what it knows, one process for all, and ends its own process, whereupon mpirun ends the others.
class mpi_watchdog {
 public:
  mpi_watchdog(const mpi_board& board, int rank, std::chrono::milliseconds timeout)
      : board_(board), rank_(rank), timeout_(timeout) {
#if defined(__linux__)
    stop_ = ::eventfd(0, EFD_CLOEXEC);
    if (stop_ < 0) return;
    // Signals are for the program's own threads.
    ::sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { watch(); });
    } catch (const std::exception&) {  // no thread can be had: nobody watches
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
  }
  mpi_watchdog(const mpi_watchdog&) = delete;
  mpi_watchdog& operator=(const mpi_watchdog&) = delete;
  ~mpi_watchdog() {
#if defined(__linux__)
    if (thread_.joinable()) {
      const std::uint64_t one = 1;
      if (::write(stop_, &one, sizeof one) != sizeof one) std::terminate();
      thread_.join();
    }
    if (stop_ >= 0) ::close(stop_);
#endif
  }

 private:
#if defined(__linux__)
  void watch() {
    ::pthread_setname_np(::pthread_self(), "heddle-watchdog");
    std::vector<::pollfd> files{{stop_, POLLIN, 0}};
    std::vector<int> ranks{rank_};
    for (int r = 0; r < board_.size(); ++r) {
      if (r == rank_ || board_.slot(r).pid.load(std::memory_order_acquire) == 0) continue;
#if defined(SYS_pidfd_open)
      const long file = ::syscall(SYS_pidfd_open, board_.slot(r).pid.load(std::memory_order_relaxed), 0);
      if (file >= 0) {
        files.push_back({static_cast<int>(file), POLLIN, 0});
        ranks.push_back(r);
      } else if (errno == ESRCH) {
        lost(r);
      }
#endif
    }
    const auto tick = std::clamp(timeout_ / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
    std::uint64_t seen = 0;
    auto since = std::chrono::steady_clock::now();
    for (;;) {
      ::poll(files.data(), files.size(), static_cast<int>(tick.count()));
      if (files[0].revents != 0) break;
      for (std::size_t i = 1; i < files.size(); ++i)
        if (files[i].revents != 0) {
          lost(ranks[i]);
          files[i].fd = -files[i].fd - 1;  // it left in peace: poll passes over it
        }
      const std::uint64_t now = board_.slot(rank_).entered.load(std::memory_order_relaxed);
      if (now != seen || board_.slot(rank_).call.load(std::memory_order_acquire) == 0) {
        seen = now;
        since = std::chrono::steady_clock::now();
      } else if (std::chrono::steady_clock::now() - since > timeout_) {
        std::string text = "heddle: rank ";
        text += std::to_string(rank_) + " has waited " + std::to_string(timeout_.count()) + " ms ";
        text += describe(board_.slot(rank_)) + who_waits_where(board_);
        end_job(text);
      }
    }
    for (std::size_t i = 1; i < files.size(); ++i) ::close(files[i].fd < 0 ? -files[i].fd - 1 : files[i].fd);
  }

  void lost(int rank) {
    if (board_.slot(rank).state.load(std::memory_order_acquire) == board_slot::left) return;
    std::string text = "heddle: rank ";
    text += std::to_string(rank);
    text += " is lost: its process (" + std::to_string(board_.slot(rank).pid.load(std::memory_order_relaxed));
    text += ") ended in the middle of the program, while it was ";
    std::string where = describe(board_.slot(rank));
    text += where == "is not waiting for anyone" ? "computing" : where;
    text += "; the others are ended:" + who_waits_where(board_);
    end_job(text);
  }

  [[noreturn]] void end_job(std::string text) {
    if (board_.claim_report()) {
      text += '\n';
      if (::write(2, text.data(), text.size()) < 0) ::_exit(1);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // somebody is printing
    }
    ::_exit(1);
  }
#endif

  const mpi_board& board_;
  int rank_;
  std::chrono::milliseconds timeout_;
  int stop_ = -1;
  std::thread thread_;
};

#endif

}  // namespace heddle::inline v0::detail

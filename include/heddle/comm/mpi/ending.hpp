// heddle/comm/mpi/ending.hpp: communicators of a launch whose ranks agree on its end.
#pragma once

#include <heddle/comm/mpi/board.hpp>
#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/session.hpp>
#include <heddle/comm/mpi/watchdog.hpp>
#include <heddle/comm/rethrow.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// Initialised by the first launch, if nobody has before; ended with the process.
inline mpi_session& mpi_of_this_process(int argc, char** argv) {
  static mpi_session session(argc, argv);
  return session;
}

// The types of errors as numbers that travel: places in `error_types`, or the number of these for an error of another type.
inline constexpr int type_of_aborted = 0, type_of_others = static_cast<int>(error_types::size);
template <class... Errors>
int type_of_error(const std::exception& e, type_list<Errors...>) {
  int at = 0;
  static_cast<void>(((dynamic_cast<const Errors*>(&e) != nullptr || (++at, false)) || ...));
  return at;
}
inline int type_of_error(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& e) {
    return type_of_error(e, error_types{});
  } catch (...) {
    return type_of_others;
  }
}
template <class... Errors>
[[noreturn]] void throw_of_type(int type, const std::string& text, type_list<Errors...>) {
  int at = 0;
  ((at++ == type ? throw Errors(text) : void()), ...);
  throw error(text);
}

// What the ranks of this process's last launch have told each other of the error that it throws here.
struct mpi_agreed_error {
  std::string text;         // as it is thrown; empty: they have not agreed on any
  bool elsewhere = false;   // another process throws and prints the same
  bool everywhere = false;  // every process of the job throws, so none waits for this one
};
inline mpi_agreed_error& mpi_last_error() {
  static mpi_agreed_error last;
  return last;
}
inline bool is_whole_job(int ranks) {
  int all = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &all), "MPI_Comm_size");
  return ranks == all;
}

// The problem of one rank, as all ranks of the communicator are told. A collective.
struct mpi_told_problem {
  std::string text;
  int type = type_of_others;
};
inline mpi_told_problem tell_problem(MPI_Comm comm, int rank, bool here, const std::exception_ptr& problem) {
  mpi_told_problem told;
  if (here) told = {what_of(problem), type_of_error(problem)};
  int about[2] = {static_cast<int>(told.text.size()), told.type};
  mpi_check(MPI_Bcast(about, 2, MPI_INT, rank, comm), "MPI_Bcast");
  told.text.resize(static_cast<std::size_t>(about[0]));
  told.type = about[1];
  mpi_check(MPI_Bcast(told.text.data(), about[0], MPI_CHAR, rank, comm), "MPI_Bcast");
  return told;
}

// Before the ranks of a communicator begin: if one of them has a problem all of them throw, each its own if it has one,
// else the first one's by rank. Virtual ranks, whose time this would take, do not ask each other.
inline void agree_to_begin(MPI_Comm comm, int rank, int size, const std::exception_ptr& problem) {
  if constexpr (virtual_ranks) {
    if (problem != nullptr) std::rethrow_exception(problem);
    return;
  }
  const int mine = problem != nullptr ? rank : size;
  int first = size;
  mpi_check(MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (first == size) return;
  const mpi_told_problem told = tell_problem(comm, first, first == rank, problem);
  if (problem != nullptr) {
    const std::string text = what_of(problem);
    mpi_last_error() = {text, first != rank && text == told.text, is_whole_job(size)};
    std::rethrow_exception(problem);
  }
  const std::string all = "rank " + std::to_string(first) + ": " + told.text;
  mpi_last_error() = {all, true, is_whole_job(size)};
  throw_of_type(told.type, all, error_types{});
}

// One launch, as one of its ranks sees it.
class mpi_world {
 public:
  mpi_world(MPI_Comm comm, const launch_options& options) : state_(std::make_shared<mpi_rank_state>(options)) {
    mpi_check(MPI_Comm_dup(comm, &all_), "MPI_Comm_dup");
    mpi_check(MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    mpi_check(MPI_Comm_rank(all_, &rank_), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(all_, &size_), "MPI_Comm_size");
    keep_flight(options);
    if ((size_ > 1 || virtual_ranks) && board_.open(all_)) {
      state_->show_on(board_, rank_);
      if (options.timeout.count() > 0 || virtual_ranks) {
        // Checked calls end by themselves after the timeout, even where a rank is slow to be scheduled.
        const auto margin = std::chrono::seconds(state_->checked() ? 2 : 0);
        watchdog_ = std::make_unique<mpi_watchdog>(board_, rank_, state_->options().timeout + margin);
      }
    }
  }
  mpi_world(const mpi_world&) = delete;
  mpi_world& operator=(const mpi_world&) = delete;
  ~mpi_world() {
    watchdog_.reset();
    groups_.clear();
    state_->show_nowhere();
    if (!state_->failed() && mpi_usable()) MPI_Comm_free(&all_);
  }

  int rank() const noexcept { return rank_; }
  mpi_rank_state& state() noexcept { return *state_; }

  std::shared_ptr<mpi_group> group(const std::string& name, const std::vector<int>& members) {
    auto& place = groups_[{name, members}];
    if (place == nullptr) place = std::make_shared<mpi_group>(state_, make(name, members), true, name, members);
    return place;
  }

  // Every rank comes here when its body has ended, with its error if there is one. Throws the same on all of them.
  void finish(const std::exception_ptr& problem) {
    if (state_->flight() != nullptr) state_->flight()->ended(problem);
    if (problem != nullptr) {
      state_->fail();
      board_.fail(rank_, what_of(problem));
    }
    if (board_) board_.slot(rank_).state.store(board_slot::returned, std::memory_order_release);
    MPI_Request arrived = MPI_REQUEST_NULL;
    mpi_check(MPI_Ibarrier(all_, &arrived), "MPI_Ibarrier");
    const auto start = std::chrono::steady_clock::now();
    std::chrono::microseconds nap{1};
    for (int done = 0;;) {
      mpi_check(mpi_test_while_waiting(&arrived, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) break;
      if (problem != nullptr && std::chrono::steady_clock::now() - start > grace) {
        std::fprintf(stderr, "heddle: rank %d: %s\nheddle: other ranks did not end within %d s: the job is ended\n",
                     rank_, what_of(problem).c_str(), static_cast<int>(grace.count()));
        std::fflush(stderr);
        MPI_Abort(all_, 1);
      }
      std::this_thread::sleep_for(nap);
      nap = (std::min)(2 * nap, std::chrono::microseconds(1000));
    }
    if (board_) board_.slot(rank_).state.store(board_slot::left, std::memory_order_release);
    // The host's first failure, or else the first by rank; one that only followed from another's counts less.
    int mine = 3 * size_, first = 0;
    if (problem != nullptr) {
      const bool followed = type_of_error(problem) == type_of_aborted;
      mine = rank_ + size_ * (board_.first_failed() == rank_ ? 0 : followed ? 2 : 1);
    }
    mpi_check(MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, all_), "MPI_Allreduce");
    if (first == 3 * size_) return;
    state_->fail();
    const int failed = first % size_;
    const mpi_told_problem told = tell_problem(all_, failed, failed == rank_, problem);
    std::string all = "rank ";
    all += std::to_string(failed);
    all += ": ";
    all += told.text;
    mpi_last_error() = {all, failed != rank_, is_whole_job(size_)};
    if (failed == rank_) rethrow_of_rank(rank_, problem);
    throw_of_type(told.type, all, error_types{});
  }

 private:
  static constexpr std::chrono::seconds grace{3};

  // Where one rank cannot make its flight file none begins.
  void keep_flight(const launch_options& options) {
    std::exception_ptr problem;
    flight_place place;
    try {
      place = flight_place_of(options.flight, options.flight_calls);
    } catch (...) {
      problem = std::current_exception();
    }
    // mpirun may have given the variable to some ranks only.
    const int mine = problem != nullptr || !place.folder.empty() ? 1 : 0;
    int any = mine;
    if constexpr (!virtual_ranks) mpi_check(MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, all_), "MPI_Allreduce");
    if (any == 0) return;
    std::int64_t run = flight_time();
    mpi_check(MPI_Bcast(&run, 1, MPI_INT64_T, 0, all_), "MPI_Bcast");
    try {
      if (problem == nullptr && place.folder.empty())
        throw config_error(
            "heddle: HEDDLE_FLIGHT is set on other ranks and not on this one; give it to all of them (mpirun -x)");
      if (problem == nullptr) state_->keep_flight(std::make_unique<flight_recorder>(place, run, rank_, size_));
    } catch (...) {
      problem = std::current_exception();
    }
    agree_to_begin(all_, rank_, size_, problem);
  }

  MPI_Comm make(const std::string& name, const std::vector<int>& members) const {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Group everyone = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    mpi_check(MPI_Comm_group(all_, &everyone), "MPI_Comm_group");
    mpi_check(MPI_Group_incl(everyone, static_cast<int>(members.size()), members.data(), &some), "MPI_Group_incl");
    // The tag keeps creations apart that go on side by side: the same for the same axes.
    unsigned tag = 2166136261u;
    for (const char c : name) tag = (tag ^ static_cast<unsigned char>(c)) * 16777619u;
    const int code = MPI_Comm_create_group(all_, some, static_cast<int>(tag & 0x7fffu), &made);
    MPI_Group_free(&some);
    MPI_Group_free(&everyone);
    mpi_check(code, "MPI_Comm_create_group");
    return made;
  }

  std::shared_ptr<mpi_rank_state> state_;
  MPI_Comm all_ = MPI_COMM_NULL;
  mpi_board board_;
  std::unique_ptr<mpi_watchdog> watchdog_;
  int rank_ = 0;
  int size_ = 1;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<mpi_group>> groups_;
};

}  // namespace heddle::inline v0::detail

// heddle/comm/mpi/group.hpp: state of one MPI communicator, and of all of a rank.
#pragma once

#include <heddle/comm/call_info.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/mpi/api.hpp>
#include <heddle/comm/mpi/board.hpp>
#include <heddle/comm/mpi/operator.hpp>
#include <heddle/comm/options.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// Of one rank and one launch (or one communicator that was not launched, and all that was split from it).
class mpi_rank_state {
 public:
  explicit mpi_rank_state(const launch_options& options) : options_(options) {
    options_.timeout = countable(options.timeout);
    update();
  }
  mpi_rank_state(const mpi_rank_state&) = delete;
  mpi_rank_state& operator=(const mpi_rank_state&) = delete;

  bool checked() const noexcept { return options_.check != checking::off; }
  bool poisons() const noexcept { return options_.check == checking::poison; }
  flight_recorder* flight() const noexcept { return flight_.get(); }
  void keep_flight(std::unique_ptr<flight_recorder> recorder) noexcept {
    flight_ = std::move(recorder);
    update();
  }
  // Calls with fewer units than this are one of MPI's and nothing more than shown and counted; 0 while there is more to
  // do: calls are checked or kept in a flight file, or an error is left to throw.
  std::uint64_t plain_end() const noexcept { return plain_end_; }
  // From now on this rank shows on the board what it does; before, in a place of its own.
  void show_on(const mpi_board& board, int rank) noexcept {
    board_ = &board;
    slot_ = &board.slot(rank);
  }
  // The board goes; whoever has kept a communicator or a request shows nothing any more.
  void show_nowhere() noexcept {
    board_ = nullptr;
    slot_ = &own_slot_;
  }
  const mpi_board* board() const noexcept { return board_; }
  board_slot& slot() const noexcept { return *slot_; }
  [[gnu::always_inline]] board_slot& enter(comm_operation what, std::int64_t bytes, int other) noexcept {
    board_slot& here = *slot_;
    here.bytes.store(bytes, std::memory_order_relaxed);
    here.entered.store(here.entered.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    here.call.store((static_cast<std::uint64_t>(what) + 1) | static_cast<std::uint64_t>(other + 1) << 8,
                    std::memory_order_release);
    return here;
  }
  void leave() noexcept { leave(*slot_); }
  static void leave(board_slot& here) noexcept { here.call.store(0, std::memory_order_release); }

  const launch_options& options() const noexcept { return options_; }
  mpi_operators& operators() noexcept { return operators_; }
  std::weak_ptr<void>& work_under_way() noexcept { return work_under_way_; }
  // The largest count given to MPI at once. Tests set it low, to see what happens beyond.
  int count_limit() const noexcept { return count_limit_; }
  void count_limit(int most) noexcept {
    count_limit_ = most;
    update();
  }

  // Errors of destructors: stored here, thrown by the next call.
  void store_late_error(std::exception_ptr problem) noexcept {
    if (late_error_ == nullptr) late_error_ = std::move(problem);
    update();
  }
  void throw_late_error() {
    if (late_error_ == nullptr) [[likely]]
      return;
    const std::exception_ptr problem = std::exchange(late_error_, nullptr);
    update();
    std::rethrow_exception(problem);
  }
  // After a failure messages may be under way for ever: nothing of MPI's is freed any more.
  bool failed() const noexcept { return failed_; }
  void fail() noexcept { failed_ = true; }

 private:
  void update() noexcept {
    plain_end_ =
        checked() || late_error_ != nullptr || flight_ != nullptr ? 0 : static_cast<std::uint64_t>(count_limit_) + 1;
  }

  std::uint64_t plain_end_ = 0;
  board_slot own_slot_;
  board_slot* slot_ = &own_slot_;
  const mpi_board* board_ = nullptr;
  launch_options options_;
  int count_limit_ = (std::numeric_limits<int>::max)();
  bool failed_ = false;
  std::exception_ptr late_error_;
  std::weak_ptr<void> work_under_way_;  // what all communicators of the rank share of a higher room's
  mpi_operators operators_;
  std::unique_ptr<flight_recorder> flight_;
};

// One communicator of MPI's, and what heddle keeps beside it.
class mpi_group {
 public:
  mpi_group(std::shared_ptr<mpi_rank_state> state, MPI_Comm comm, bool owned, std::string name,
            std::vector<int> members)
      : state_(std::move(state)), comm_(comm), owned_(owned), name_(std::move(name)), members_(std::move(members)) {
    mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    if (owned_) mpi_check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    void* value = nullptr;
    int found = 0;
    mpi_check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&value), &found), "MPI_Comm_get_attr");
    own_tag_ = found != 0 ? *static_cast<int*>(value) : 32767;
    if (state_->checked()) {
      mpi_check(MPI_Comm_dup(comm_, &checks_), "MPI_Comm_dup");
      mpi_check(MPI_Comm_set_errhandler(checks_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    size_if_few_ = static_cast<std::size_t>(size_) <= few ? static_cast<std::size_t>(size_) : ~std::size_t{0};
    int_scratch_.resize(4 * (std::max)(static_cast<std::size_t>(size_), few));
  }
  mpi_group(const mpi_group&) = delete;
  mpi_group& operator=(const mpi_group&) = delete;
  ~mpi_group() {
    if (state_->failed() || !mpi_usable()) return;
    if (checks_ != MPI_COMM_NULL) MPI_Comm_free(&checks_);
    if (owned_) MPI_Comm_free(&comm_);
  }

  mpi_rank_state& state() noexcept { return *state_; }
  const std::shared_ptr<mpi_rank_state>& shared_state() const noexcept { return state_; }
  MPI_Comm comm() const noexcept { return comm_; }
  // The same ranks, for what ranks tell each other about their calls where those are checked.
  MPI_Comm checks() const noexcept { return checks_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  const std::vector<int>& members() const noexcept { return members_; }
  int world_rank(int r) const { return members_[static_cast<std::size_t>(r)]; }
  comm_counters& counters() noexcept { return counters_; }
  // Collectives entered so far, and a number made of all of them: equal on ranks that have made the same calls.
  std::int64_t next_call() noexcept { return ++calls_; }
  std::uint64_t& chain() noexcept { return chain_; }
  std::int64_t next_ticket() noexcept { return tickets_++; }
  std::int64_t next_split() noexcept { return splits_++; }
  // A tag that no message of the user's has: of the messages that a collective is made of where MPI has none for it.
  int own_tag() const noexcept { return own_tag_; }
  // Room for counts and offsets, 4 per rank, and for those of `few` ranks in any case.
  int* int_scratch() noexcept { return int_scratch_.data(); }
  static constexpr std::size_t few = 64;
  // How many ranks there are, or, where that is more than a few, a length that no list has.
  std::size_t size_if_few() const noexcept { return size_if_few_; }

  // Where the number of the group in the rank's flight file is kept.
  int& flight_group() noexcept { return flight_group_; }

  // A call of so many units is one of MPI's and nothing more.
  bool plain(std::uint64_t units) const noexcept { return units < state_->plain_end(); }
  // Counts and shows such a call. `begin` comes before MPI's call, `end` after it, whatever it says.
  [[gnu::always_inline]] board_slot& begin(comm_operation what, std::int64_t bytes, int other = -1) noexcept {
    count(what, bytes);
    return state_->enter(what, bytes, other);
  }
  static void end(board_slot& shown) noexcept { mpi_rank_state::leave(shown); }
  void count(comm_operation what, std::int64_t bytes) noexcept {
    comm_counters::per_operation& c = counters_[what];
    c.calls += 1;
    c.bytes += bytes;
  }

 private:
  std::shared_ptr<mpi_rank_state> state_;
  MPI_Comm comm_;
  MPI_Comm checks_ = MPI_COMM_NULL;
  bool owned_;
  int rank_ = 0;
  int size_ = 1;
  int own_tag_ = 0;
  std::string name_;
  std::vector<int> members_;
  comm_counters counters_;
  std::int64_t calls_ = 0;
  std::uint64_t chain_ = 0;
  std::int64_t tickets_ = 0;
  std::int64_t splits_ = 0;
  int flight_group_ = -1;
  std::vector<int> int_scratch_;
  std::size_t size_if_few_ = 0;
};

}  // namespace heddle::inline v0::detail

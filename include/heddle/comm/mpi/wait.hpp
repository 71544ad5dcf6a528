// heddle/comm/mpi/wait.hpp: waits for MPI, and looks out for failed ranks and the timeout.
#pragma once

#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/watchdog.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// "all_reduce of 8 float with plus, call 3 on communicator (dp)"
inline std::string where_of(mpi_group& group, const call_info& call, std::int64_t number) {
  std::string text = describe(call, group.members());
  if (number > 0) text += ", call " + std::to_string(number);
  text += " on communicator (" + group.name() + ")";
  return text;
}

// Throws where a rank of the world, or with `members` of the group, has failed on this host.
inline void throw_if_failed(mpi_group& group, const call_info& call, std::int64_t number, bool members = false) {
  const mpi_board* const board = group.state().board();
  const int failed = board == nullptr ? -1 : board->first_failed();
  if (failed < 0) return;
  const auto& all = group.members();
  if (members && std::find(all.begin(), all.end(), failed) == all.end()) return;
  throw aborted_error(text_of({"heddle: rank ", failed, " failed while rank ", group.world_rank(group.rank()),
                               " was in ", where_of(group, call, number), ": ", board->head().failure}));
}

// The slow part of a wait: what is wrong, if something is. Made when a rank has waited for a while already.
class mpi_patience {
 public:
  using clock = std::chrono::steady_clock;

  mpi_patience(mpi_group& group, const call_info& call, std::int64_t number)
      : group_(group), call_(call), number_(number), where_(where_of(group, call, number)) {
    mpi_board::write_text(group_.state().slot(), "in " + where_);
  }
  mpi_patience(const mpi_patience&) = delete;
  mpi_patience& operator=(const mpi_patience&) = delete;
  ~mpi_patience() { mpi_board::write_text(group_.state().slot(), ""); }

  // Naps, longer ones as time goes by, and throws what ends the wait.
  void nap() {
    const clock::time_point now = clock::now();
    const mpi_board* board = group_.state().board();
    const int me = group_.world_rank(group_.rank());
    throw_if_failed(group_, call_, number_);
    if (board != nullptr && !virtual_ranks) {  // whose messages may be under way for long after their bodies' ends
      const int gone = returned(*board);
      if (gone < 0) {
        gone_since_ = now;
      } else if (now - gone_since_ > std::chrono::milliseconds(300)) {  // nothing of its is under way any more
        throw comm_error(text_of({"heddle: rank ", me, " waits in ", where_, " for rank ", gone,
                                  ", whose body has returned", who_waits_where(*board)}));
      }
    }
    const std::chrono::milliseconds timeout = group_.state().options().timeout;
    if (timeout.count() > 0 && now - start_ > timeout) {
      std::string text = "heddle: rank ";
      text += std::to_string(me) + " has waited " + std::to_string(timeout.count()) + " ms in " + where_;
      if (board != nullptr) text += who_waits_where(*board);
      throw comm_error(text);
    }
    if (now - start_ < std::chrono::milliseconds(2))
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(now - start_ < std::chrono::milliseconds(50) ? 20 : 200));
  }

 private:
  int returned(const mpi_board& board) const {
    const auto over = [&](int member) {
      const int rank = group_.world_rank(member);
      return board.slot(rank).state.load(std::memory_order_acquire) >= board_slot::returned ? rank : -1;
    };
    if (is_message(call_.what)) return over(call_.root);
    for (int r = 0; r < group_.size(); ++r)
      if (const int rank = over(r); rank >= 0) return rank;
    return -1;
  }

  mpi_group& group_;
  call_info call_;
  std::int64_t number_;
  std::string where_;
  clock::time_point start_ = clock::now();
  clock::time_point gone_since_ = start_;
};

// Polls `done()` until it says true.
template <class Done>
void wait_in_call(mpi_group& group, const call_info& call, std::int64_t number, Done&& done) {
  for (int i = 0; i < 200; ++i) {
    if (done()) return;
    if (i > 20) std::this_thread::yield();
  }
  mpi_patience patience(group, call, number);
  try {
    while (!done()) patience.nap();
  } catch (...) {
    group.state().fail();
    throw;
  }
}

inline std::uint64_t mixed(std::uint64_t chain, std::string_view text) {
  for (const char c : text) chain = (chain ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return chain;
}

inline std::uint64_t signature(const call_info& call) {
  std::uint64_t chain = mixed(mixed(0xcbf29ce484222325u, call.element), "|");
  chain = mixed(mixed(chain, call.combine), "|");
  const std::uint64_t numbers[] = {static_cast<std::uint64_t>(call.what),
                                   static_cast<std::uint64_t>(call.count),
                                   call.element_size,
                                   static_cast<std::uint64_t>(call.root),
                                   call.counts_hash,
                                   call.started ? 1u : 0u,
                                   static_cast<std::uint64_t>(call.mark)};
  char bytes[sizeof numbers];
  std::memcpy(bytes, numbers, sizeof numbers);
  return mixed(chain, std::string_view(bytes, sizeof bytes));
}

// What ranks tell each other about a call, blocking or started: the maximum of these tells each rank whether all are the
// same, whether any has raised its flag, and whether any has started its call and gone on.
struct call_comparison {
  std::uint64_t in[3] = {}, out[3] = {};

  void begin(mpi_group& group, const call_info& call, bool flag, MPI_Request* request) {
    group.chain() = (group.chain() ^ signature(call)) * 0x9e3779b97f4a7c15u;
    in[0] = group.chain();
    in[1] = ~group.chain();
    in[2] = call.started ? 2u : flag ? 1u : 0u;
    mpi_start_all_reduce(in, out, 3, MPI_UINT64_T, MPI_MAX, group.checks(), request);
  }
  bool same() const { return out[0] == ~out[1]; }
  bool any_flag() const { return out[2] != 0; }
  bool any_started() const { return out[2] == 2; }
};

// Where some ranks have started their calls, which need not wait for them here: nobody can be asked what they entered.
[[noreturn]] inline void throw_disagreement_alone(mpi_group& group, const call_info& call, std::int64_t number) {
  group.chain() = 0;  // who goes on with the communicator has its later calls compared
  group.state().fail();
  throw comm_error(text_of({"heddle: ranks disagree about call ", number, " on communicator (", group.name(),
                            "): rank ", group.world_rank(group.rank()), " entered ", describe(call, group.members()),
                            ", and not all other ranks did"}));
}

// Every rank of the group comes here when their calls are not all the same and all of them block: rank 0's and that of
// the first rank which has made another one are told to all.
[[noreturn]] inline void throw_disagreement(mpi_group& group, const call_info& call, std::int64_t number) {
  const std::string mine = describe(call, group.members());
  const auto of = [&](int r) {
    std::string text = mine;
    auto length = static_cast<int>(text.size());
    mpi_check(MPI_Bcast(&length, 1, MPI_INT, r, group.checks()), "MPI_Bcast");
    text.resize(static_cast<std::size_t>(length));
    mpi_check(MPI_Bcast(text.data(), length, MPI_CHAR, r, group.checks()), "MPI_Bcast");
    return text;
  };
  std::uint64_t first = signature(call);
  mpi_check(MPI_Bcast(&first, 1, MPI_UINT64_T, 0, group.checks()), "MPI_Bcast");
  const int differs = signature(call) != first ? group.rank() : group.size() - 1;
  int other = differs;
  mpi_check(MPI_Allreduce(&differs, &other, 1, MPI_INT, MPI_MIN, group.checks()), "MPI_Allreduce");
  const std::string theirs = of(other), zero = of(0);
  std::string all = "heddle: ranks disagree about call ";
  all += std::to_string(number) + " on communicator (" + group.name() + "): rank ";
  all += std::to_string(group.world_rank(other)) + " entered " + theirs + "; rank ";
  all += std::to_string(group.world_rank(0)) + " entered " + zero;
  if (theirs == zero) all += " with other counts per rank";
  group.chain() = 0;  // who goes on with the communicator has its later calls compared
  group.state().fail();
  throw comm_error(all);
}

// Before a collective: waits until all ranks have entered one, and compares them by one small all-reduce on a
// communicator of its own. Returns whether any rank has raised its flag.
inline bool agree(mpi_group& group, const call_info& call, bool flag) {
  auto v = std::make_unique<call_comparison>();
  const std::int64_t number = group.next_call();
  MPI_Request request = MPI_REQUEST_NULL;
  v->begin(group, call, flag, &request);
  try {
    wait_in_call(group, call, number, [&] {
      int done = 0;
      mpi_check(mpi_test_while_waiting(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
  } catch (...) {
    (void)v.release();  // MPI may write into it as long as it lives
    throw;
  }
  // Whoever has given up since comes neither to the call nor to the texts of a disagreement.
  try {
    throw_if_failed(group, call, number, true);
  } catch (...) {
    group.state().fail();
    throw;
  }
  if (!v->same() && v->any_started()) throw_disagreement_alone(group, call, number);
  if (!v->same()) throw_disagreement(group, call, number);
  return v->any_flag();
}

// A call, from its beginning to the end of the scope.
class mpi_entered {
 public:
  template <class Info>
  mpi_entered(mpi_group& group, comm_operation what, std::int64_t bytes, int other, bool flag, Info&& info)
      : state_(group.state()), flag_(flag) {
    state_.throw_late_error();
    group.count(what, bytes);
    state_.enter(what, bytes, other);
    if (state_.checked() || state_.flight() != nullptr) [[unlikely]] {
      const call_info call = info();
      if (state_.flight() != nullptr)
        kept_.emplace(state_.flight(), group.flight_group(), group.name(), group.members(), call,
                      group.counters().collectives());
      try {
        if (state_.checked()) flag_ = agree(group, call, flag);
      } catch (...) {
        state_.leave();
        throw;
      }
    }
  }
  mpi_entered(const mpi_entered&) = delete;
  mpi_entered& operator=(const mpi_entered&) = delete;
  ~mpi_entered() { state_.leave(); }
  bool flag() const noexcept { return flag_; }

 private:
  mpi_rank_state& state_;
  bool flag_;
  std::optional<flight_scope> kept_{};
};

}  // namespace heddle::inline v0::detail

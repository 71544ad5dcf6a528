// heddle/comm/mpi/wait.hpp: waits for MPI without getting stuck in it: looks out for failed ranks and for the timeout.
#pragma once

#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/watchdog.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
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

// The slow part of a wait: what is wrong, if something is. Made when a rank has waited for a while already.
class mpi_patience {
 public:
  using clock = std::chrono::steady_clock;

  mpi_patience(mpi_group& group, const call_info& call, std::int64_t number)
      : group_(group), call_(call), where_(where_of(group, call, number)) {
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
    if (const int failed = board == nullptr ? -1 : board->first_failed(); failed >= 0) {
      std::string text = "heddle: rank ";
      text += std::to_string(failed) + " failed while rank " + std::to_string(me) + " was in " + where_ + ": ";
      text += board->head().failure;
      throw aborted_error(text);
    }
    if (board != nullptr) {
      const int gone = returned(*board);
      if (gone < 0) {
        gone_since_ = now;
      } else if (now - gone_since_ > std::chrono::milliseconds(300)) {  // nothing of its is under way any more
        std::string text = "heddle: rank ";
        text += std::to_string(me) + " waits in " + where_ + " for rank " + std::to_string(gone);
        text += ", whose body has returned" + who_waits_where(*board);
        throw comm_error(text);
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
  const std::uint64_t numbers[] = {static_cast<std::uint64_t>(call.what), static_cast<std::uint64_t>(call.count),
                                   call.element_size, static_cast<std::uint64_t>(call.root), call.counts_hash};
  char bytes[sizeof numbers];
  std::memcpy(bytes, numbers, sizeof numbers);
  return mixed(chain, std::string_view(bytes, sizeof bytes));
}

[[noreturn]] inline void throw_disagreement(mpi_group& group, const call_info& call, std::int64_t number) {
  constexpr int length = 256;
  std::vector<char> texts(static_cast<std::size_t>(length) * static_cast<std::size_t>(group.size()));
  char mine[length] = {};
  const std::string text = describe(call, group.members());
  std::memcpy(mine, text.data(), (std::min)(text.size(), sizeof mine - 1));
  mpi_check(MPI_Allgather(mine, length, MPI_CHAR, texts.data(), length, MPI_CHAR, group.checks()), "MPI_Allgather");
  const auto of = [&](int r) { return std::string(texts.data() + static_cast<std::ptrdiff_t>(length) * r); };
  int other = 1;
  while (other + 1 < group.size() && of(other) == of(0)) ++other;
  std::string all = "heddle: ranks disagree about call ";
  all += std::to_string(number) + " on communicator (" + group.name() + "): rank ";
  all += std::to_string(group.world_rank(other)) + " entered " + of(other) + "; rank ";
  all += std::to_string(group.world_rank(0)) + " entered " + of(0);
  if (of(other) == of(0)) all += " with other counts per rank";
  group.state().fail();
  throw comm_error(all);
}

// Before a collective: waits until all ranks have entered one, and compares them by one small all-reduce on a
// communicator of its own. Returns whether any rank has raised its flag.
inline bool agree(mpi_group& group, const call_info& call, bool flag) {
  struct values {
    std::uint64_t in[3], out[3];
  };
  auto v = std::make_unique<values>();
  const std::int64_t number = group.next_call();
  group.chain() = (group.chain() ^ signature(call)) * 0x9e3779b97f4a7c15u;
  v->in[0] = group.chain();
  v->in[1] = ~group.chain();
  v->in[2] = flag ? 1 : 0;
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Iallreduce(v->in, v->out, 3, MPI_UINT64_T, MPI_MAX, group.checks(), &request), "MPI_Iallreduce");
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
  if (v->out[0] != ~v->out[1]) throw_disagreement(group, call, number);
  return v->out[2] != 0;
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
    if (state_.checked()) [[unlikely]] {
      try {
        flag_ = agree(group, info(), flag);
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
};

}  // namespace heddle::inline v0::detail

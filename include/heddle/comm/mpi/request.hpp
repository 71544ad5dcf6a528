// heddle/comm/mpi/request.hpp: a started send or receive of MPI's.
#pragma once

#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/wait.hpp>
#include <heddle/comm/wait_all.hpp>
#include <heddle/core/ownership.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

class mpi_calls;

// A message that does not fit the receive.
[[noreturn, gnu::noinline, gnu::cold]] inline void throw_message_mismatch(mpi_group& group, const call_info& call,
                                                                          const std::string& came) {
  const std::string me = std::to_string(group.world_rank(group.rank()));
  const std::string other = std::to_string(group.world_rank(call.root));
  throw comm_error(
      text_of({"heddle: rank ", me, " and rank ", other, " disagree about a message on communicator (", group.name(),
               "): rank ", me, " entered ", describe(call, group.members()), "; rank ", other, " ", came}));
}

// A receive that MPI says went wrong, or whose message is shorter than the buffer.
[[noreturn, gnu::noinline, gnu::cold]] inline void fail_receive(mpi_group& group, int code, const MPI_Status& status,
                                                                const call_info& call) {
  if (code != MPI_SUCCESS) {
    int kind = code;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) throw_message_mismatch(group, call, "sent more than that");
    throw_mpi_error(code, "MPI_Recv");
  }
  throw_message_mismatch(group, call, "sent " + std::to_string(received_bytes(status)) + " bytes");
}

// A blocking message, shown on the board while it lasts.
class in_message {
 public:
  in_message(mpi_group& group, const call_info& call, std::int64_t bytes)
      : state_(group.state()), kept_(state_.flight(), group.flight_group(), group.name(), group.members(), call, 0) {
    state_.enter(call.what, bytes, call.root);
  }
  in_message(const in_message&) = delete;
  in_message& operator=(const in_message&) = delete;
  ~in_message() { state_.leave(); }

 private:
  mpi_rank_state& state_;
  flight_scope kept_;
};

// What goes ahead of a message where calls are checked: the sender's side of it.
struct message_header {
  std::int64_t count = 0;
  std::uint64_t element_size = 0;
  char element[48] = {};

  void set(const call_info& call) {
    count = call.count;
    element_size = call.element_size;
    std::memcpy(element, call.element.data(), (std::min)(call.element.size(), sizeof element - 1));
  }
  friend bool operator==(const message_header& a, const message_header& b) {
    return a.count == b.count && a.element_size == b.element_size && std::strcmp(a.element, b.element) == 0;
  }
};
struct checked_message {
  message_header header{};
  std::string_view element;  // of the own side
  std::size_t element_size = 0;
  MPI_Request request = MPI_REQUEST_NULL;
};

}  // namespace detail

/// A started send or receive; its buffer belongs to it until `wait` has returned or `test` has said true.
///
/// Destroying a request that has not been waited for waits for it, so that no buffer is used after its end; an error
/// met there is thrown by the rank's next call or at the end of its body. While an exception unwinds the stack a receive
/// is taken back instead, and a send is left to MPI: nobody should receive it any more.
class [[nodiscard("heddle: a message that was started must be waited for")]] mpi_request final {
 public:
  mpi_request() = default;
  mpi_request(mpi_request&& other) noexcept
      : group_(std::move(other.group_)),
        request_(std::exchange(other.request_, MPI_REQUEST_NULL)),
        check_(std::move(other.check_)),
        message_(other.message_) {}
  mpi_request& operator=(mpi_request&& other) noexcept { return move_assign(*this, std::move(other)); }
  [[gnu::always_inline]] ~mpi_request() {
    if (request_ != MPI_REQUEST_NULL) [[unlikely]]
      end();
  }

  /// Returns when the message is done; at once for an empty request.
  /// Errors: as the blocking call. The request is empty afterwards in any case.
  [[gnu::always_inline]] void wait() {
    if (request_ == MPI_REQUEST_NULL) return;
    if (check_ != nullptr) return checked_wait();
    detail::mpi_rank_state& state = group_->state();
    if (state.flight() != nullptr) [[unlikely]]
      return kept_wait();
    MPI_Status status;
    detail::board_slot& shown = state.enter(message_.what, message_.bytes, message_.other);
    const int code = MPI_Wait(&request_, &status);
    state.leave(shown);
    finish_plain(code, status);
  }

  /// Whether the message is done; never waits. Errors: as `wait`, but knows no timeout.
  bool test() {
    if (request_ == MPI_REQUEST_NULL) return true;
    MPI_Status status;
    int done = 0;
    const int code = MPI_Test(&request_, &done, &status);
    if (code == MPI_SUCCESS && done == 0) {
      throw_if_failed();
      return false;
    }
    if (check_ == nullptr)
      finish_plain(code, status);
    else
      finish_checked(code, status);
    return true;
  }

  /// Takes a receive back; where its message is there already, returns when that is done. A send is left to MPI.
  void cancel() noexcept {
    if (request_ == MPI_REQUEST_NULL) return;
    if (receives()) {
      MPI_Cancel(&request_);
      MPI_Wait(&request_, MPI_STATUS_IGNORE);
      if (check_ != nullptr && check_->request != MPI_REQUEST_NULL) {
        MPI_Cancel(&check_->request);
        MPI_Wait(&check_->request, MPI_STATUS_IGNORE);
      }
    } else {
      let_go(request_);
      if (check_ != nullptr && !let_go(check_->request)) (void)check_.release();  // MPI may read it as long as it lives
    }
    check_.reset();
    request_ = MPI_REQUEST_NULL;
  }

  /// Returns when one of these messages of one rank is done, as its `test` then says; at once if there is none.
  static void wait_any(std::span<mpi_request* const> requests) {
    const auto any = [&] {
      for (mpi_request* r : requests)
        if (r->request_ == MPI_REQUEST_NULL || r->ready()) return true;
      return false;
    };
    if (requests.empty() || any()) return;
    const mpi_request& first = *requests[0];
    const detail::in_message here(*first.group_, first.call(), first.message_.bytes);
    if (first.check_ == nullptr)
      while (!any()) std::this_thread::yield();
    else
      detail::wait_in_call(*first.group_, first.call(), 0, any);
  }

 private:
  friend class detail::mpi_calls;

  // What is under way, in as little as a report needs.
  struct message {
    comm_operation what = comm_operation::recv;
    int other = -1;
    int tag = 0;
    std::int64_t count = 0;
    std::int64_t bytes = 0;
  };

  mpi_request(const std::shared_ptr<detail::mpi_group>& group, const message& m) : group_(group), message_(m) {}

  [[gnu::noinline]] void start_check(std::string_view element, std::size_t element_size) {
    // The header goes the message's way, with its tag, on another communicator: the k-th belongs to the k-th.
    check_ = std::make_unique<detail::checked_message>();
    check_->element = element;
    check_->element_size = element_size;
    detail::message_header& header = check_->header;
    constexpr int bytes = static_cast<int>(sizeof header);
    if (receives()) {
      detail::mpi_check(
          MPI_Irecv(&header, bytes, MPI_BYTE, message_.other, message_.tag, group_->checks(), &check_->request),
          "MPI_Irecv");
    } else {
      header.set(call());
      detail::mpi_check(
          MPI_Isend(&header, bytes, MPI_BYTE, message_.other, message_.tag, group_->checks(), &check_->request),
          "MPI_Isend");
    }
  }

  bool receives() const noexcept { return message_.what == comm_operation::recv; }
  detail::call_info call() const {
    const auto count = static_cast<std::size_t>(message_.count);
    return {message_.what,
            message_.count,
            check_ == nullptr ? std::string_view{} : check_->element,
            {},
            check_ != nullptr ? check_->element_size
            : count == 0      ? std::size_t{0}
                              : static_cast<std::size_t>(message_.bytes) / count,
            message_.other,
            message_.tag,
            0};
  }

  // Kept in the rank's flight file while it lasts.
  [[gnu::noinline]] void kept_wait() {
    MPI_Status status;
    const detail::in_message here(*group_, call(), message_.bytes);
    const int code = MPI_Wait(&request_, &status);
    finish_plain(code, status);
  }
  [[gnu::noinline]] void checked_wait() {
    MPI_Status status;
    int code = MPI_SUCCESS;
    const detail::in_message here(*group_, call(), message_.bytes);
    try {
      detail::wait_in_call(*group_, call(), 0, [&] {
        int done = 0;
        code = detail::mpi_test_while_waiting(&request_, &done, &status);
        return code != MPI_SUCCESS || done != 0;
      });
    } catch (...) {
      cancel();
      throw;
    }
    finish_checked(code, status);
  }
  // False if it had to be left to MPI.
  static bool let_go(MPI_Request& r) noexcept {
    int done = 0;
    if (r == MPI_REQUEST_NULL || (MPI_Test(&r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0)) return true;
    MPI_Request_free(&r);
    return false;
  }
  void throw_if_failed() {
    const detail::mpi_board* board = group_->state().board();
    const int failed = board == nullptr ? -1 : board->first_failed();
    if (failed < 0) return;
    const std::string where = detail::where_of(*group_, call(), 0);
    cancel();
    throw aborted_error(text_of({"heddle: rank ", failed, " failed while rank ", group_->world_rank(group_->rank()),
                                 " was in ", where, ": ", board->head().failure}));
  }

  // Whether `test` would say true; changes nothing.
  bool ready() const {
    int done = 0;
    detail::mpi_check(MPI_Request_get_status(request_, &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
    return done != 0;
  }

  void finish_plain(int code, const MPI_Status& status) {
    request_ = MPI_REQUEST_NULL;  // as MPI has set it, unless the call failed
    if (code != MPI_SUCCESS || (receives() && detail::received_bytes(status) != message_.bytes)) [[unlikely]]
      fail(code, status);
  }
  [[gnu::noinline]] void finish_checked(int code, const MPI_Status& status) {
    request_ = MPI_REQUEST_NULL;
    const detail::call_info mine = call();
    const auto check = std::move(check_);
    detail::wait_in_call(*group_, mine, 0, [&] {  // nearly always there already
      int done = 0;
      detail::mpi_check(detail::mpi_test_while_waiting(&check->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
    detail::message_header header;
    header.set(mine);
    if (receives() && !(header == check->header)) {
      detail::call_info other = mine;
      other.what = comm_operation::send;
      other.root = group_->rank();
      other.count = check->header.count;
      other.element = check->header.element;
      detail::throw_message_mismatch(*group_, mine, "entered " + detail::describe(other, group_->members()));
    }
    finish_plain(code, status);
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail(int code, const MPI_Status& status) {
    if (!receives()) detail::throw_mpi_error(code, "MPI_Isend");
    detail::fail_receive(*group_, code, status, call());
  }

  [[gnu::noinline]] void end() noexcept {
    if (request_ == MPI_REQUEST_NULL) return;
    if (std::uncaught_exceptions() > 0) return cancel();
    try {
      wait();
    } catch (...) {
      group_->state().store_late_error(std::current_exception());
    }
  }

  std::shared_ptr<detail::mpi_group> group_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::unique_ptr<detail::checked_message> check_;
  message message_{};
};

}  // namespace heddle::inline v0

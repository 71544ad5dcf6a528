// heddle/comm/mpi/request.hpp: a started send or receive of MPI's.
#pragma once

#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/wait_all.hpp>

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

class mpi_calls;

// A message of `bytes` bytes was received into a buffer of another size.
[[noreturn]] inline void throw_message_size(mpi_group& group, int from, int tag, std::size_t expected,
                                            const std::string& came) {
  std::string text = "heddle: rank ";
  text += std::to_string(group.world_rank(group.rank()));
  text += " on communicator (" + group.name() + "): recv of " + std::to_string(expected) + " bytes from rank ";
  text += std::to_string(group.world_rank(from)) + " (tag " + std::to_string(tag) + "): the message has " + came;
  throw comm_error(text);
}

// What a receive ended with: an error where the message is longer or shorter than the buffer.
inline void check_received(mpi_group& group, int code, MPI_Status& status, int from, int tag, std::size_t bytes) {
  if (code != MPI_SUCCESS) [[unlikely]] {
    int kind = code;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) throw_message_size(group, from, tag, bytes, "more");
    throw_mpi_error(code, "MPI_Recv");
  }
  MPI_Count got = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &got);
  if (got != static_cast<MPI_Count>(bytes)) [[unlikely]]
    throw_message_size(group, from, tag, bytes, std::to_string(got));
}

}  // namespace detail

/// A started send or receive; its buffer belongs to it until `wait` has returned or `test` has said true.
///
/// Destroying a request that has not been waited for waits for it, so that no buffer is used after its end; an error
/// met there is thrown by the rank's next call or at the end of its body. While an exception unwinds the stack a receive
/// is taken back instead, and a send is left to MPI: nobody should receive it any more.
class [[nodiscard("heddle: a message that was started must be waited for")]] mpi_request {
 public:
  mpi_request() = default;
  mpi_request(mpi_request&& other) noexcept
      : group_(std::move(other.group_)),
        request_(std::exchange(other.request_, MPI_REQUEST_NULL)),
        what_(other.what_),
        unwinding_(other.unwinding_) {}
  mpi_request& operator=(mpi_request&& other) noexcept {
    if (this != &other) {
      end();
      group_ = std::move(other.group_);
      request_ = std::exchange(other.request_, MPI_REQUEST_NULL);
      what_ = other.what_;
      unwinding_ = other.unwinding_;
    }
    return *this;
  }
  ~mpi_request() { end(); }

  /// Returns when the message is done; at once for an empty request.
  /// Errors: as the blocking call. The request is empty afterwards in any case.
  void wait() {
    if (request_ == MPI_REQUEST_NULL) return;
    MPI_Status status;
    finish(MPI_Wait(&request_, &status), status);
  }

  /// Whether the message is done; never waits. Errors: as `wait`.
  bool test() {
    if (request_ == MPI_REQUEST_NULL) return true;
    MPI_Status status;
    int done = 0;
    const int code = MPI_Test(&request_, &done, &status);
    if (code == MPI_SUCCESS && done == 0) return false;
    finish(code, status);
    return true;
  }

  /// Takes a receive back; where its message is there already, returns when that is done. A send is left to MPI.
  void cancel() noexcept {
    if (request_ == MPI_REQUEST_NULL) return;
    if (what_.receives) {
      MPI_Cancel(&request_);
      MPI_Wait(&request_, MPI_STATUS_IGNORE);
    } else {
      int done = 0;
      if (MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) MPI_Request_free(&request_);
    }
    request_ = MPI_REQUEST_NULL;
  }

  /// Returns when one of these messages of one rank is done, as its `test` then says; at once if there is none.
  static void wait_any(std::span<mpi_request* const> requests) {
    for (mpi_request* r : requests)
      if (r->request_ == MPI_REQUEST_NULL || r->ready()) return;
    for (;;)
      for (mpi_request* r : requests)
        if (r->ready()) return;
  }

 private:
  friend class detail::mpi_calls;

  struct expected {
    int peer = 0;
    int tag = 0;
    std::size_t bytes = 0;
    bool receives = false;
  };

  mpi_request(std::shared_ptr<detail::mpi_group> group, MPI_Request request, const expected& what)
      : group_(std::move(group)), request_(request), what_(what), unwinding_(std::uncaught_exceptions()) {}

  // Whether `test` would say true; changes nothing.
  bool ready() const {
    int done = 0;
    detail::mpi_check(MPI_Request_get_status(request_, &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
    return done != 0;
  }

  void finish(int code, MPI_Status& status) {
    request_ = MPI_REQUEST_NULL;
    if (what_.receives) {
      int cancelled = 0;
      MPI_Test_cancelled(&status, &cancelled);
      if (cancelled == 0) detail::check_received(*group_, code, status, what_.peer, what_.tag, what_.bytes);
    } else {
      detail::mpi_check(code, "MPI_Isend");
    }
  }

  void end() noexcept {
    if (request_ == MPI_REQUEST_NULL) return;
    if (std::uncaught_exceptions() > unwinding_) return cancel();
    try {
      wait();
    } catch (...) {
      group_->state().store_late_error(std::current_exception());
    }
  }

  std::shared_ptr<detail::mpi_group> group_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  expected what_{};
  int unwinding_ = 0;  // exceptions under way when it was made
};

}  // namespace heddle::inline v0

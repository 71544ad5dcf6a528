// heddle/comm/mpi/started.hpp: collectives of MPI that are started now and waited for later.
#pragma once

#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/operator.hpp>
#include <heddle/comm/mpi/wait.hpp>
#include <heddle/core/ownership.hpp>
#include <heddle/core/text.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

// All that MPI may use until a started collective is done.
struct mpi_started_call {
  MPI_Request request = MPI_REQUEST_NULL;
  call_info call;
  std::int64_t bytes = 0;

  // The comparison of the calls, where they are checked.
  MPI_Request check = MPI_REQUEST_NULL;
  std::int64_t number = 0;
  std::int64_t flight_number = 0;  // in the rank's flight file
  call_comparison comparison;

  // An operator of the user's: a copy, and a type of its own at which it hangs, since others may be under way.
  std::shared_ptr<void> op;
  mpi_op_slot slot{};
  owned_datatype type{};

  std::vector<int> counts;              // with offsets behind them
  std::string poisoned_input;           // a copy, where results are poisoned
  std::unique_ptr<std::byte[]> input;   // a copy, where the caller's is the output as well
  std::unique_ptr<std::byte[]> result;  // of which `to` gets a copy at the end
  void* to = nullptr;
  std::size_t to_bytes = 0;

  void compare(mpi_group& group) {
    number = group.next_call();
    comparison.begin(group, call, false, &check);
  }
};

// Ends a call: what MPI may still use is left to it, since nothing takes a collective back.
struct mpi_started_end {
  mpi_rank_state* state = nullptr;
  void operator()(mpi_started_call* call) const noexcept {
    if (call->check == MPI_REQUEST_NULL && call->request == MPI_REQUEST_NULL) {
      delete call;
    } else {
      state->fail();
    }
  }
};
using mpi_started_handle = std::unique_ptr<mpi_started_call, mpi_started_end>;

}  // namespace detail

/// A started collective: one of MPI's. Its buffers belong to it until `wait` has returned or `test` has said true.
///
/// Destroying a request that has not been waited for waits for it, so that no buffer is used after its end; an error
/// met there is thrown by the rank's next call or at the end of its body. MPI cannot take a collective back: while an
/// exception unwinds the stack the destructor waits a tenth of a second for it, and then leaves it to MPI, which may
/// use the buffers as long as the world lives.
class [[nodiscard("heddle: a collective that was started must be waited for")]] mpi_started final {
 public:
  mpi_started() = default;
  ~mpi_started() { end(); }
  mpi_started(mpi_started&&) noexcept = default;
  mpi_started& operator=(mpi_started&& other) noexcept { return move_assign(*this, std::move(other)); }

  /// Returns when the result is there; at once for an empty request.
  /// Errors: as the blocking call. The request is empty afterwards in any case.
  void wait() {
    if (call_ == nullptr) return;
    detail::mpi_rank_state& state = group_->state();
    const detail::flight_scope kept(state.flight(), group_->flight_group(), group_->name(), group_->members(),
                                    call_->call, call_->flight_number);
    if (call_->number == 0) {  // not checked
      detail::board_slot& shown = state.enter(call_->call.what, call_->bytes, call_->call.root);
      const int code = MPI_Wait(&call_->request, MPI_STATUS_IGNORE);
      state.leave(shown);
      return finish(code);
    }
    int code = MPI_SUCCESS;
    state.enter(call_->call.what, call_->bytes, call_->call.root);
    try {
      detail::wait_in_call(*group_, call_->call, call_->number, [&] {
        if (!compared()) return false;
        int done = 0;
        code = detail::mpi_test_while_waiting(&call_->request, &done, MPI_STATUS_IGNORE);
        return code != MPI_SUCCESS || done != 0;
      });
    } catch (...) {
      state.leave();
      leave_to_mpi();
      throw;
    }
    state.leave();
    finish(code);
  }

  /// Whether the result is there; never waits. Errors: as `wait`, but knows no timeout.
  bool test() {
    if (call_ == nullptr) return true;
    int code = MPI_SUCCESS, done = 0;
    try {
      if (!compared()) return false;
      code = MPI_Test(&call_->request, &done, MPI_STATUS_IGNORE);
      if (code == MPI_SUCCESS && done == 0) detail::throw_if_failed(*group_, call_->call, call_->number);
    } catch (...) {
      leave_to_mpi();
      throw;
    }
    if (code == MPI_SUCCESS && done == 0) return false;
    finish(code);
    return true;
  }

 private:
  friend class mpi_communicator;

  mpi_started(std::shared_ptr<detail::mpi_group> group, detail::mpi_started_handle call)
      : group_(std::move(group)), call_(std::move(call)), unwinding_(std::uncaught_exceptions()) {}

  // Whether all ranks have started the same; at once where nobody compares.
  bool compared() {
    if (call_->check == MPI_REQUEST_NULL) return true;
    int done = 0;
    detail::mpi_check(detail::mpi_test_while_waiting(&call_->check, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
    if (call_->comparison.same()) return true;
    detail::throw_disagreement_alone(*group_, call_->call, call_->number);
  }
  void finish(int code) {
    const auto call = std::move(call_);
    detail::mpi_check(code, "MPI_Wait");
    if (call->slot.problem != nullptr) std::rethrow_exception(call->slot.problem);
    if (call->result != nullptr && call->to_bytes > 0) std::memcpy(call->to, call->result.get(), call->to_bytes);
  }
  void leave_to_mpi() noexcept {
    if (call_ == nullptr) return;
    group_->state().fail();
    static_cast<void>(call_.release());  // MPI may use it as long as it lives
  }

  void end() noexcept {
    if (call_ == nullptr) return;
    try {
      if (std::uncaught_exceptions() <= unwinding_) return wait();
      const auto start = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(100)) {
        if (test()) return;
        std::this_thread::yield();
      }
      leave_to_mpi();
    } catch (...) {
      leave_to_mpi();
      if (std::uncaught_exceptions() <= unwinding_) group_->state().store_late_error(std::current_exception());
    }
  }

  std::shared_ptr<detail::mpi_group> group_;
  detail::mpi_started_handle call_;
  int unwinding_ = 0;  // exceptions under way when it was made
};

}  // namespace heddle::inline v0

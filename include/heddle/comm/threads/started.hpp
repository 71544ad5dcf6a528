// heddle/comm/threads/started.hpp: collectives between threads, started and waited for.
#pragma once

#include <heddle/comm/threads/group_state.hpp>
#include <heddle/core/ownership.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace heddle::inline v0 {

namespace detail {

// What a rank does of a started collective: the pieces of its work, with all that they need. Every rank has one of its own.
struct started_work {
  std::int64_t chunks = 0;
  std::shared_ptr<void> context;
  std::int64_t (*run)(const void* context, std::int64_t chunk) = nullptr;  // returns bytes written
};

// The buffers of a started collective, for the ranges of threads/work.hpp.
struct started_places {
  const started_collective* call;
  int size() const { return static_cast<int>(call->members.size()); }
  template <class T>
  const T* in(int r) const {
    return static_cast<const T*>(call->members[static_cast<std::size_t>(r)].in);
  }
  template <class T>
  T* out(int r) const {
    return static_cast<T*>(call->members[static_cast<std::size_t>(r)].out);
  }
};

}  // namespace detail

/// A started collective; its buffers belong to it until `wait` has returned or `test` has said true.
///
/// Nobody works on it before all ranks have started it. Then those that wait or test share the work, and any of them can
/// do all of it: no rank depends on when another waits. Folds go in rank order, as in the blocking calls, to the same bits.
///
/// Destroying a request that has not been waited for waits for it, so that no buffer is used after its end; an error
/// met there is thrown by the rank's next call or at the end of its body. While an exception unwinds the stack the call
/// is taken back instead, and the other ranks get a `comm_error`.
class [[nodiscard("heddle: a collective that was started must be waited for")]] threads_started final {
 public:
  threads_started() = default;
  threads_started(threads_started&&) noexcept = default;
  threads_started& operator=(threads_started&& other) noexcept { return move_assign(*this, std::move(other)); }
  ~threads_started() {
    if (call_ != nullptr) end();
  }

  /// Returns when the result is there; at once for an empty request.
  /// Errors: as the blocking call. The request is empty afterwards in any case.
  void wait();

  /// Whether the result is there; takes its share of the work, and waits for nobody. Errors: as `wait`, but knows no timeout.
  bool test();

  /// Takes the call back; where ranks are at work on it already, returns when that is done.
  void cancel() noexcept;

 private:
  friend class threads_communicator;
  using started_collective = detail::started_collective;

  threads_started(std::shared_ptr<detail::world_state> world, std::shared_ptr<detail::group_state> group, int me)
      : world_(std::move(world)), group_(std::move(group)), me_(me), unwinding_(std::uncaught_exceptions()) {}

  int my_rank() const { return group_->world_rank(me_); }
  static bool over(const started_collective& call) {
    return call.state.load(std::memory_order_acquire) >= started_collective::done;
  }

  // As many pieces as nobody else has, once all ranks are there.
  void work_on(started_collective& call, std::exception_ptr& problem);

  class started_waiter;

  void finish(started_collective& call, const std::exception_ptr& problem);

  void end() noexcept;

  std::shared_ptr<detail::world_state> world_;  // outlives the group
  std::shared_ptr<detail::group_state> group_;
  std::shared_ptr<started_collective> call_;
  detail::started_work work_;
  std::exception_ptr problem_;  // of this rank's own share: thrown when the others' shares are done, too
  int me_ = 0;
  int unwinding_ = 0;  // exceptions under way when it was made
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/started.hpp>
#endif

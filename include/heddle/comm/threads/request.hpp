// heddle/comm/threads/request.hpp: a started send or receive between threads.
#pragma once

#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/wait_all.hpp>
#include <heddle/core/ownership.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace heddle::inline v0::detail {

// What a message needs before it has an address.
struct message_arguments {
  call_info call;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;

  void fill(message& m) const {
    m.call = call;
    m.from = from;
    m.to = to;
    m.bytes = bytes;
  }
};

}  // namespace heddle::inline v0::detail

namespace heddle::inline v0 {

/// A started send or receive; its buffer belongs to it until `wait` has returned or `test` has said true.
///
/// Destroying a request that has not been waited for waits for it, so that no buffer is used after its end; an error
/// met there is thrown by the rank's next call or at the end of its body. While an exception unwinds the stack the
/// message is taken back instead.
class [[nodiscard("heddle: a message that was started must be waited for")]] threads_request final {
 public:
  threads_request() = default;
  ~threads_request() {
    if (message_ != nullptr) end();
  }
  threads_request(threads_request&&) noexcept = default;
  threads_request& operator=(threads_request&& other) noexcept { return move_assign(*this, std::move(other)); }

  /// Returns when the message is done; at once for an empty request.
  /// Errors: as the blocking call. The request is empty afterwards in any case.
  void wait() {
    if (message_ == nullptr) return;
    const auto message = std::move(message_);
    group_->wait(*message);
  }

  /// Whether the message is done; never waits. Errors: as `wait`, but knows no timeout.
  bool test();

  /// Takes the message back; where the other side is at work on it already, returns when that is done.
  void cancel() noexcept;

  /// Returns when one of these messages of one rank is done, as its `test` then says; at once if there is none.
  /// Errors: as `wait`; all of them stay started then.
  static void wait_any(std::span<threads_request* const> requests);

 private:
  friend class threads_communicator;

  class any_waiter;

  threads_request(std::shared_ptr<detail::world_state> world, std::shared_ptr<detail::group_state> group,
                  const detail::message_arguments& arguments);

  // If this throws the message is not posted, and must not be waited for.
  void post(int rank);

  void end() noexcept;

  std::shared_ptr<detail::world_state> world_;  // outlives the group
  std::shared_ptr<detail::group_state> group_;
  std::unique_ptr<detail::message> message_;
  int unwinding_ = 0;  // exceptions under way when it was made
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/request.hpp>
#endif

// heddle/comm/threads/request.hpp: a started send or receive between threads.
#pragma once

#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/wait_all.hpp>

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0 {

namespace detail {

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

}  // namespace detail

/// A started send or receive; its buffer belongs to it until `wait` has returned or `test` has said true.
///
/// Destroying a request that has not been waited for waits for it, so that no buffer is used after its end; an error
/// met there is thrown by the rank's next call or at the end of its body. While an exception unwinds the stack the
/// message is taken back instead.
class [[nodiscard("heddle: a message that was started must be waited for")]] threads_request {
 public:
  threads_request() = default;
  threads_request(threads_request&& other) noexcept
      : world_(std::move(other.world_)),
        group_(std::move(other.group_)),
        message_(std::move(other.message_)),
        unwinding_(other.unwinding_) {}
  threads_request& operator=(threads_request&& other) noexcept {
    if (this != &other) {
      end();
      world_ = std::move(other.world_);
      group_ = std::move(other.group_);
      message_ = std::move(other.message_);
      unwinding_ = other.unwinding_;
    }
    return *this;
  }
  ~threads_request() { end(); }

  /// Returns when the message is done; at once for an empty request.
  /// Errors: as the blocking call. The request is empty afterwards in any case.
  void wait() {
    if (message_ == nullptr) return;
    const auto message = std::move(message_);
    group_->wait(*message);
  }

  /// Whether the message is done; never waits. Errors: as `wait`, but knows no timeout.
  bool test() {
    if (message_ == nullptr) return true;
    if (message_->state.load(std::memory_order_acquire) == detail::message::posted) {
      if (!group_->world().aborted() || !group_->cancel(*message_)) return false;
      const auto message = std::move(message_);
      group_->throw_if_aborted(*message);
    }
    wait();
    return true;
  }

  /// Takes the message back; where the other side is at work on it already, returns when that is done.
  void cancel() noexcept {
    if (message_ == nullptr) return;
    group_->cancel_or_finish(*message_);
    message_.reset();
  }

  /// Returns when one of these messages of one rank is done, as its `test` then says; at once if there is none.
  /// Errors: as `wait`; all of them stay started then.
  static void wait_any(std::span<threads_request* const> requests) {
    if (requests.empty() || requests[0]->message_ == nullptr) return;
    const threads_request& first = *requests[0];
    const int rank = first.group_->world_rank(first.message_->owner);
    detail::wait_until(*first.world_, rank, first.world_->rank(rank).bell,
                       {first.message_->call, 0, &first.group_->members(), &first.group_->label(), {}},
                       any_waiter{requests});
  }

 private:
  friend class threads_communicator;

  struct any_waiter {
    std::span<threads_request* const> requests;

    static bool posted(const threads_request& r) {
      return r.message_ != nullptr && r.message_->state.load(std::memory_order_acquire) == detail::message::posted;
    }
    bool ready() const {
      for (const threads_request* r : requests)
        if (!posted(*r)) return true;
      return false;
    }
    void help() const {}
    bool withdraw() const { return !ready(); }
    // Who has finished is read first, so that a rank that did its side and then finished is not blamed.
    int gone() const {
      for (const threads_request* r : requests) {
        const int peer = r->group_->world_rank(r->message_->call.root);
        if (r->world_->finished(peer) && posted(*r)) return peer;
      }
      return -1;
    }
    std::string absent() const {
      if (requests.size() == 1) return {};
      std::string text = " and for ";
      text += std::to_string(requests.size() - 1);
      text += " more messages";
      return text;
    }
    template <class F>
    void for_each_peer(const F& f) const {
      for (const threads_request* r : requests) f(r->group_->world_rank(r->message_->call.root));
    }
  };

  threads_request(std::shared_ptr<detail::world_state> world, std::shared_ptr<detail::group_state> group,
                  const detail::message_arguments& arguments)
      : world_(std::move(world)),
        group_(std::move(group)),
        message_(std::make_unique<detail::message>()),
        unwinding_(std::uncaught_exceptions()) {
    arguments.fill(*message_);
  }

  // If this throws the message is not posted, and must not be waited for.
  void post(int rank) {
    try {
      group_->post(rank, message_->call.root, *message_);
    } catch (...) {
      message_.reset();
      throw;
    }
  }

  void end() noexcept {
    if (message_ == nullptr) return;
    if (std::uncaught_exceptions() > unwinding_) {
      group_->cancel_or_finish(*message_);
      message_.reset();
      return;
    }
    const int owner = group_->world_rank(message_->owner);
    try {
      wait();
    } catch (...) {
      world_->store_late_error(owner, std::current_exception());
    }
  }

  std::shared_ptr<detail::world_state> world_;  // outlives the group
  std::shared_ptr<detail::group_state> group_;
  std::unique_ptr<detail::message> message_;
  int unwinding_ = 0;  // exceptions under way when it was made
};

}  // namespace heddle::inline v0

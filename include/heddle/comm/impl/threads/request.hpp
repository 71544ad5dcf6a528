// heddle/comm/impl/threads/request.hpp: bodies of heddle/comm/threads/request.hpp.
#pragma once

#include <heddle/comm/threads/request.hpp>
#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/threads/group_state.hpp>
#include <heddle/core/text.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0 {

class threads_request::any_waiter final : public detail::waiter {
 public:
  explicit any_waiter(std::span<threads_request* const> all) : requests_(all) {}

  static bool posted(const threads_request& r) {
    return r.message_ != nullptr && r.message_->state.load(std::memory_order_acquire) == detail::message::posted;
  }
  bool ready() const override {
    for (const threads_request* r : requests_)
      if (!posted(*r)) return true;
    return false;
  }
  bool withdraw() const override { return !ready(); }
  // Who has finished is read first, so that a rank that did its side and then finished is not blamed.
  int gone() const override {
    for (const threads_request* r : requests_) {
      const int peer = r->group_->world_rank(r->message_->call.root);
      if (r->world_->finished(peer) && posted(*r)) return peer;
    }
    return -1;
  }
  std::string absent() const override {
    if (requests_.size() == 1) return {};
    return text_of({" and for ", requests_.size() - 1, " more messages"});
  }
  int peer(std::size_t i) const override {
    return i < requests_.size() ? requests_[i]->group_->world_rank(requests_[i]->message_->call.root) : -1;
  }

 private:
  std::span<threads_request* const> requests_;
};

HEDDLE_INLINE threads_request::threads_request(std::shared_ptr<detail::world_state> world,
                                               std::shared_ptr<detail::group_state> group,
                                               const detail::message_arguments& arguments)
    : world_(std::move(world)),
      group_(std::move(group)),
      message_(std::make_unique<detail::message>()),
      unwinding_(std::uncaught_exceptions()) {
  arguments.fill(*message_);
}

HEDDLE_INLINE bool threads_request::test() {
  if (message_ == nullptr) return true;
  if (message_->state.load(std::memory_order_acquire) == detail::message::posted) {
    if (!group_->world().aborted() || !group_->cancel(*message_)) return false;
    const auto message = std::move(message_);
    group_->throw_if_aborted(*message);
  }
  wait();
  return true;
}

HEDDLE_INLINE void threads_request::cancel() noexcept {
  if (message_ == nullptr) return;
  group_->cancel_or_finish(*message_);
  message_.reset();
}

HEDDLE_INLINE void threads_request::wait_any(std::span<threads_request* const> requests) {
  if (requests.empty() || requests[0]->message_ == nullptr) return;
  const threads_request& first = *requests[0];
  const int rank = first.group_->world_rank(first.message_->owner);
  const detail::flight_scope shown(first.world_->rank(rank).flight,
                                   first.group_->slot(first.message_->owner).flight_group, first.group_->label(),
                                   first.group_->members(), first.message_->call, 0);
  detail::wait_until(*first.world_, rank, first.world_->rank(rank).bell,
                     {first.message_->call, 0, &first.group_->members(), &first.group_->label(), {}},
                     any_waiter(requests));
}

HEDDLE_INLINE void threads_request::post(int rank) {
  try {
    group_->post(rank, message_->call.root, *message_);
  } catch (...) {
    message_.reset();
    throw;
  }
}

HEDDLE_INLINE void threads_request::end() noexcept {
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

}  // namespace heddle::inline v0

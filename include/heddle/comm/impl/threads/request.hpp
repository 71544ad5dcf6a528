// heddle/comm/impl/threads/request.hpp: bodies of heddle/comm/threads/request.hpp.
#pragma once

#include <heddle/comm/threads/request.hpp>
#include <heddle/comm/threads/group_state.hpp>

#include <atomic>
#include <exception>
#include <span>
#include <utility>

namespace heddle::inline v0 {

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

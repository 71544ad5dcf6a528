// heddle/comm/impl/threads/started.hpp: bodies of heddle/comm/threads/started.hpp.
#pragma once

#include <heddle/comm/threads/started.hpp>
#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/threads/group_state.hpp>
#include <heddle/core/durations.hpp>
#include <heddle/core/error.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>

namespace heddle::inline v0 {

class threads_started::started_waiter final : public detail::waiter {
 public:
  started_waiter(threads_started& of, started_collective& c, std::exception_ptr& p)
      : request_(of), call_(c), problem_(p) {}
  bool ready() const override { return over(call_); }
  void help() const override { request_.work_on(call_, problem_); }
  bool withdraw() const override { return request_.group_->break_started(request_.me_, call_); }
  // Who has finished is read first, so that a rank that started the call and then finished is not blamed.
  int gone() const override {
    for (int r = 0; r < request_.group_->size(); ++r)
      if (request_.world_->finished(request_.group_->world_rank(r)) && !call_[r].here.load(std::memory_order_acquire))
        return request_.group_->world_rank(r);
    return -1;
  }
  std::string absent() const override {
    std::string text;
    for (int r = 0; r < request_.group_->size(); ++r)
      if (!call_[r].here.load(std::memory_order_acquire))
        text += (text.empty() ? " for rank " : ", rank ") + std::to_string(request_.group_->world_rank(r));
    return text;
  }
  // Members end with an alarm of the group: there are no peers.

 private:
  threads_started& request_;
  started_collective& call_;
  std::exception_ptr& problem_;
};

HEDDLE_INLINE void threads_started::wait() {
  if (call_ == nullptr) return;
  const auto call = std::move(call_);
  std::exception_ptr problem = std::move(problem_);
  const detail::flight_scope shown(world_->rank(my_rank()).flight, group_->slot(me_).flight_group, group_->label(),
                                   group_->members(), (*call)[me_].call, (*call)[me_].flight_number);
  work_on(*call, problem);
  if (!over(*call))
    detail::wait_until(*world_, my_rank(), group_->bell(),
                       {(*call)[me_].call, call->number, &group_->members(), &group_->label(), {}},
                       started_waiter(*this, *call, problem));
  finish(*call, problem);
}

HEDDLE_INLINE bool threads_started::test() {
  if (call_ == nullptr) return true;
  work_on(*call_, problem_);
  if (!over(*call_)) {
    if (!world_->aborted() || !group_->break_started(me_, *call_)) return false;
    const auto call = std::move(call_);
    world_->throw_aborted(my_rank(), group_->where((*call)[me_].call, call->number));
  }
  const auto call = std::move(call_);
  const std::exception_ptr problem = std::move(problem_);
  finish(*call, problem);
  return true;
}

HEDDLE_INLINE void threads_started::cancel() noexcept {
  if (call_ == nullptr) return;
  const auto call = std::move(call_);
  if (group_->break_started(me_, *call)) return;
  std::exception_ptr problem;
  work_on(*call, problem);
  while (!over(*call)) std::this_thread::yield();
}

HEDDLE_INLINE void threads_started::work_on(started_collective& call, std::exception_ptr& problem) {
  if (call.state.load(std::memory_order_acquire) != started_collective::open) return;
  for (;;) {
    const std::int64_t chunk = call.next.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= work_.chunks) return;
    try {
      group_->slot(me_).counters.bytes_moved += work_.run(work_.context.get(), chunk);
    } catch (...) {
      problem = std::current_exception();
      group_->fail_started(me_, call, problem);
    }
    if (call.finished.fetch_add(1, std::memory_order_acq_rel) + 1 == work_.chunks) group_->complete_started(call);
  }
}

HEDDLE_INLINE void threads_started::finish(started_collective& call, const std::exception_ptr& problem) {
  if (problem != nullptr) std::rethrow_exception(problem);
  const auto state = call.state.load(std::memory_order_acquire);
  if (state == started_collective::done) return;
  // Whoever has taken it back is about to end the world, in most cases: its error says more.
  for (int i = 0; i < 200 && state == started_collective::broken && !world_->aborted(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (state == started_collective::broken && world_->aborted())
    world_->throw_aborted(my_rank(), group_->where(call[me_].call, call.number));
  throw comm_error(call.failure);
}

HEDDLE_INLINE void threads_started::end() noexcept {
  if (call_ == nullptr) return;
  if (std::uncaught_exceptions() > unwinding_) return cancel();
  try {
    wait();
  } catch (...) {
    world_->store_late_error(my_rank(), std::current_exception());
  }
}

}  // namespace heddle::inline v0

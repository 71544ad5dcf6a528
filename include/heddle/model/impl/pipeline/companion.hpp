// heddle/model/impl/pipeline/companion.hpp: bodies of heddle/model/pipeline/companion.hpp.
#pragma once

#include <heddle/model/pipeline/companion.hpp>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace heddle::inline v0::model {

HEDDLE_INLINE companion::companion() : thread_([this] { serve(); }) {}

HEDDLE_INLINE companion::~companion() {
  pass(state::leave);
  thread_.join();
}

HEDDLE_INLINE void companion::pass(state to) {
  {
    const std::lock_guard lock(mutex_);
    state_ = to;
  }
  changed_.notify_all();
}

HEDDLE_INLINE std::exception_ptr companion::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ == state::idle; });
  return std::exchange(error_, nullptr);
}

HEDDLE_INLINE void companion::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return state_ != state::idle; });
    if (state_ == state::leave) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      call_(work_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = std::move(error);
    state_ = state::idle;
    changed_.notify_all();
  }
}

}  // namespace heddle::inline v0::model

// heddle/infer/impl/serve/request_queue.hpp: the states of a queue of requests.
#pragma once

#include <heddle/infer/serve/request_queue.hpp>

#include <utility>

namespace heddle::inline v0::infer {

HEDDLE_INLINE request_queue::request_queue(std::int64_t max_waiting) : max_waiting_(max_waiting) {
  if (max_waiting < 1)
    throw config_error("heddle: a queue of requests has room for at least one that waits, got " +
                       std::to_string(max_waiting));
}

HEDDLE_INLINE void request_queue::unavailable() const {
  switch (state_) {
    case queue_state::loading:
      throw unavailable_error("heddle: the model is loading");
    case queue_state::draining:
      throw unavailable_error("heddle: the server is shutting down");
    default:
      throw unavailable_error("heddle: the engine has ended" + (reason_.empty() ? "" : ": " + reason_));
  }
}

HEDDLE_INLINE std::shared_ptr<answer_channel> request_queue::submit(std::vector<request> requests) {
  std::int64_t vocabulary = 0, context = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != queue_state::open) unavailable();
    vocabulary = vocabulary_;
    context = context_;
  }
  for (const request& r : requests) require_request(r, vocabulary, context);
  auto channel = std::make_shared<answer_channel>();
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != queue_state::open) unavailable();
    if (waiting_ >= max_waiting_) {
      statistics_.refused();
      throw queue_full_error("heddle: " + std::to_string(waiting_) + " requests wait, at most " +
                             std::to_string(max_waiting_) + " may");
    }
    const auto now = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i)
      work_.push_back({.what = queue_work::kind::begin,
                       .channel = channel,
                       .choice = i,
                       .asked = std::move(requests[i]),
                       .submitted = now});
    waiting_ += static_cast<std::int64_t>(requests.size());
    listed_ += static_cast<std::int64_t>(requests.size());
  }
  changed_.notify_all();
  return channel;
}

HEDDLE_INLINE void request_queue::finish(const std::shared_ptr<answer_channel>& channel, std::size_t choice) {
  {
    const std::scoped_lock lock(mutex_);
    if (state_ == queue_state::closed) return;
    work_.push_back({.what = queue_work::kind::finish, .channel = channel, .choice = choice});
  }
  changed_.notify_all();
}

HEDDLE_INLINE void request_queue::cancel(const std::shared_ptr<answer_channel>& channel) {
  {
    const std::scoped_lock lock(mutex_);
    if (state_ == queue_state::closed) return;
    work_.push_back({.what = queue_work::kind::cancel, .channel = channel});
  }
  changed_.notify_all();
}

HEDDLE_INLINE queue_state request_queue::state() const {
  const std::scoped_lock lock(mutex_);
  return state_;
}

HEDDLE_INLINE void request_queue::require_open() const {
  const std::scoped_lock lock(mutex_);
  if (state_ != queue_state::open) unavailable();
}

HEDDLE_INLINE std::int64_t request_queue::waiting() const {
  const std::scoped_lock lock(mutex_);
  return waiting_;
}

HEDDLE_INLINE std::int64_t request_queue::context() const {
  const std::scoped_lock lock(mutex_);
  return context_;
}

HEDDLE_INLINE std::int64_t request_queue::vocabulary() const {
  const std::scoped_lock lock(mutex_);
  return vocabulary_;
}

HEDDLE_INLINE std::vector<std::int32_t> request_queue::end_tokens() const {
  const std::scoped_lock lock(mutex_);
  return end_tokens_;
}

HEDDLE_INLINE void request_queue::drain() {
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != queue_state::closed) state_ = queue_state::draining;
  }
  changed_.notify_all();
}

HEDDLE_INLINE void request_queue::abort() {
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != queue_state::closed) state_ = queue_state::draining;
    abort_ = true;
  }
  changed_.notify_all();
}

HEDDLE_INLINE bool request_queue::aborted() const {
  const std::scoped_lock lock(mutex_);
  return abort_;
}

HEDDLE_INLINE void request_queue::open(std::int64_t vocabulary, std::int64_t context,
                                       std::vector<std::int32_t> end_tokens) {
  const std::scoped_lock lock(mutex_);
  vocabulary_ = vocabulary;
  context_ = context;
  end_tokens_ = std::move(end_tokens);
  if (state_ == queue_state::loading) state_ = queue_state::open;
}

HEDDLE_INLINE bool request_queue::take(std::vector<queue_work>& to, bool wait) {
  to.clear();
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [&] { return !work_.empty() || state_ != queue_state::open; });
  std::swap(to, work_);
  listed_ = 0;
  return !to.empty() || state_ == queue_state::open;
}

HEDDLE_INLINE void request_queue::publish(const engine_counts& counts) {
  statistics_.publish(counts);
  const std::scoped_lock lock(mutex_);
  waiting_ = listed_ + counts.waiting;
}

HEDDLE_INLINE void request_queue::close(const std::string& reason) {
  std::vector<queue_work> left;
  {
    const std::scoped_lock lock(mutex_);
    state_ = queue_state::closed;
    reason_ = reason;
    std::swap(left, work_);
    waiting_ = listed_ = 0;
  }
  for (const queue_work& w : left)
    if (w.what == queue_work::kind::begin) {
      statistics_.ended(finish_reason::error, 0, static_cast<std::int64_t>(w.asked.prompt.size()), 0);
      w.channel->put({.choice = w.choice, .what = {.finish = finish_reason::error, .message = reason}});
    }
}

}  // namespace heddle::inline v0::infer

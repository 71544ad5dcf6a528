// heddle/rendezvous/impl/memory.hpp: bodies of heddle/rendezvous/memory.hpp.
#pragma once

#include <heddle/rendezvous/memory.hpp>
#include <heddle/rendezvous/rendezvous.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

HEDDLE_INLINE std::vector<std::byte> memory_rendezvous::get(const std::string& key, int giver) {
  const detail::deadline until(timeout_);
  std::unique_lock lock(meeting_->mutex_);
  for (;;) {
    if (const auto found = meeting_->values_.find(key); found != meeting_->values_.end()) return found->second;
    if (!meeting_->failure_.empty()) throw aborted_error(meeting_->failure_);
    if (until.passed()) absent(rank_, until, "in memory", key, giver);
    // The system clock, in short steps: ThreadSanitizer of g++ 12 does not know waits on the steady clock.
    meeting_->changed_.wait_until(lock, std::chrono::system_clock::now() + until.rest(std::chrono::milliseconds(200)));
  }
}

HEDDLE_INLINE bool memory_rendezvous::draw(const std::string& key, std::vector<std::byte>& value,
                                           std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  std::unique_lock lock(meeting_->mutex_);
  for (;;) {
    if (auto found = meeting_->values_.extract(key); !found.empty()) {
      value = std::move(found.mapped());
      return true;
    }
    if (!meeting_->failure_.empty()) throw aborted_error(meeting_->failure_);
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::steady_clock::duration::zero()) return false;
    meeting_->changed_.wait_until(
        lock, std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(left));
  }
}

HEDDLE_INLINE void memory_rendezvous::announce(const std::string& text) noexcept {
  try {
    const std::lock_guard lock(meeting_->mutex_);
    if (meeting_->failure_.empty()) meeting_->failure_ = text;
    meeting_->changed_.notify_all();
  } catch (...) {  // no memory for the text: the others will run into their timeouts
  }
}

}  // namespace heddle::inline v0

// heddle/rendezvous/memory.hpp: a rendezvous of ranks that are threads of one process.
#pragma once

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

/// What the ranks of a `memory_rendezvous` share: make one and pass it to each of them.
class memory_meeting {
 public:
  memory_meeting() = default;
  memory_meeting(const memory_meeting&) = delete;
  memory_meeting& operator=(const memory_meeting&) = delete;

 private:
  friend class memory_rendezvous;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> values_;
  std::string failure_;
};

/// Ranks that are threads. Units: milliseconds; zero waits for ever.
class memory_rendezvous final : public detail::keyed_rendezvous {
 public:
  memory_rendezvous(std::shared_ptr<memory_meeting> meeting, int rank, int size,
                    std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000))
      : meeting_(std::move(meeting)), rank_(rank), size_(size), timeout_(timeout) {
    detail::require_rank_of("memory_rendezvous", rank, size);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void put(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard lock(meeting_->mutex_);
    meeting_->values_[key].assign(value.begin(), value.end());
    meeting_->changed_.notify_all();
  }
  std::vector<std::byte> get(const std::string& key, int giver) override {
    const detail::deadline until(timeout_);
    std::unique_lock lock(meeting_->mutex_);
    for (;;) {
      if (const auto found = meeting_->values_.find(key); found != meeting_->values_.end()) return found->second;
      if (!meeting_->failure_.empty()) throw aborted_error(meeting_->failure_);
      if (until.passed()) absent(rank_, until, "in memory", key, giver);
      // The system clock, in short steps: ThreadSanitizer of g++ 12 does not know waits on the steady clock.
      meeting_->changed_.wait_until(lock,
                                    std::chrono::system_clock::now() + until.rest(std::chrono::milliseconds(200)));
    }
  }
  bool draw(const std::string& key, std::vector<std::byte>& value, std::chrono::milliseconds patience) override {
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
  void announce(const std::string& text) noexcept override {
    try {
      const std::lock_guard lock(meeting_->mutex_);
      if (meeting_->failure_.empty()) meeting_->failure_ = text;
      meeting_->changed_.notify_all();
    } catch (...) {  // no memory for the text: the others will run into their timeouts
    }
  }
  std::string failure() override {
    const std::lock_guard lock(meeting_->mutex_);
    return meeting_->failure_;
  }

 private:
  std::shared_ptr<memory_meeting> meeting_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
};

}  // namespace heddle::inline v0

// heddle/rendezvous/memory.hpp: a rendezvous of ranks that are threads of one process.
#pragma once

#include <heddle/core/config.hpp>
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
  std::vector<std::byte> get(const std::string& key, int giver) override;
  bool draw(const std::string& key, std::vector<std::byte>& value, std::chrono::milliseconds patience) override;
  void announce(const std::string& text) noexcept override;
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

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rendezvous/impl/memory.hpp>
#endif

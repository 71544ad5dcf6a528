// heddle/comm/threads/condition_word.hpp: a counter to sleep on, for systems without futexes.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/durations.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

namespace heddle::inline v0::detail {

// Used as `futex_word` of heddle/comm/threads/wait_word.hpp, which says what the calls mean.
class condition_word {
 public:
  std::uint32_t load() const noexcept { return value_.load(std::memory_order_acquire); }

  void notify(int waiters = (std::numeric_limits<int>::max)()) noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    {
      const std::lock_guard lock(mutex_);
    }
    if (waiters == 1)
      changed_.notify_one();
    else
      changed_.notify_all();
  }

  void notify_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) notify();
  }
  void announce() noexcept { sleepers_.fetch_add(1, std::memory_order_seq_cst); }
  void retract() noexcept { sleepers_.fetch_sub(1, std::memory_order_relaxed); }

  void wait(std::uint32_t seen, std::chrono::nanoseconds at_most) noexcept {
    if (at_most.count() <= 0) return;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    // ThreadSanitizer of g++ 12 does not know waits on the steady clock. The system clock may be set back meanwhile, so
    // never wait for longer than a second; the caller comes back.
    const std::chrono::nanoseconds slice = (std::min)(at_most, std::chrono::nanoseconds(1'000'000'000));
    if (value_.load(std::memory_order_seq_cst) == seen)
      changed_.wait_until(lock, std::chrono::system_clock::now() +
                                    std::chrono::duration_cast<std::chrono::system_clock::duration>(slice));
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace heddle::inline v0::detail

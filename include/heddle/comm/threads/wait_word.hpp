// heddle/comm/threads/wait_word.hpp: a counter that threads sleep on until it changes or time runs out.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/durations.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace heddle::inline v0::detail {

// Tells the processor that this thread polls.
inline void poll_pause() noexcept {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
  __builtin_ia32_pause();
#elif defined(__GNUC__) && defined(__aarch64__) && !defined(__CUDACC__)
  asm volatile("yield");
#endif
}

// Both words work alike. A waiter reads `load()`, then looks whether what it waits for has happened, then calls
// `wait(seen)`, which returns once `notify` has been called after that `load()`, when time is out, or for no reason.
// std::atomic::wait would do, were it not that it cannot give up after a time.

#if defined(__linux__)
class futex_word {
 public:
  std::uint32_t load() const noexcept { return value_.load(std::memory_order_acquire); }

  // `waiters`: how many sleepers to wake at most; all the others stay asleep until the next call.
  void notify(int waiters = (std::numeric_limits<int>::max)()) noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    // Sequentially consistent with the increment in wait(): either this sees the sleeper, or the sleeper's kernel call
    // sees the new value.
    if (sleepers_.load(std::memory_order_seq_cst) != 0)
      ::syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, waiters, nullptr, nullptr, 0);
  }

  void wait(std::uint32_t seen, std::chrono::nanoseconds at_most) noexcept {
    if (at_most.count() <= 0) return;
    ::timespec time{};
    time.tv_sec = static_cast<decltype(time.tv_sec)>(at_most.count() / 1'000'000'000);
    time.tv_nsec = static_cast<decltype(time.tv_nsec)>(at_most.count() % 1'000'000'000);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  void* address() noexcept { return &value_; }

  std::atomic<std::uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};
#endif

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

#if defined(__linux__)
using wait_word = futex_word;
#else
using wait_word = condition_word;
#endif

}  // namespace heddle::inline v0::detail

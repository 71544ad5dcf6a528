// heddle/comm/threads/wait_word.hpp: a counter that threads sleep on, with a timeout.
#pragma once

#include <heddle/core/config.hpp>
#if !defined(__linux__)
#include <heddle/comm/threads/condition_word.hpp>
#endif
#include <heddle/core/durations.hpp>

#include <atomic>
#include <cstdint>
#include <limits>

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

// This word and condition_word work alike. A waiter reads `load()`, then looks whether what it waits for has happened, then calls
// `wait(seen)`, which returns once `notify` has been called after that `load()`, when time is out, or for no reason.
// Whoever has made the change by a sequentially consistent store may call `notify_sleepers` instead, which writes nothing while nobody has
// announced a sleep: then waiters announce theirs (`sleep_announced`) before they look, by a sequentially consistent load, whether it
// has happened. std::atomic::wait would do, were it not that it cannot give up after a time.

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

  void notify_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) notify();
  }
  void announce() noexcept { sleepers_.fetch_add(1, std::memory_order_seq_cst); }
  void retract() noexcept { sleepers_.fetch_sub(1, std::memory_order_relaxed); }

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
using wait_word = futex_word;
#else
using wait_word = condition_word;
#endif

// A thread that may sleep on a word in a scope.
class sleep_announced {
 public:
  explicit sleep_announced(wait_word& word) noexcept : word_(word) { word_.announce(); }
  sleep_announced(const sleep_announced&) = delete;
  sleep_announced& operator=(const sleep_announced&) = delete;
  ~sleep_announced() { word_.retract(); }

 private:
  wait_word& word_;
};

}  // namespace heddle::inline v0::detail

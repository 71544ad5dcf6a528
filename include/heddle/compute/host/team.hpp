// heddle/compute/host/team.hpp: a few threads that work together on one kernel at a time.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/durations.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::compute {

/// Threads of somebody else that call `call(context, w)` for every w in [0, parts), each w on its own thread if they can, and
/// return when all have returned.
struct lent_threads {
  void (*run)(void* of, int parts, void (*call)(void* context, int w), void* context) = nullptr;
  void* of = nullptr;  ///< what `run` is given, which outlives the team
};

/// The calling thread and `threads - 1` workers. Work is cut into fixed, contiguous parts, so that the same number of
/// threads always computes the same thing; each part goes to the thread that asks for one next, so that a worker that
/// the system does not run holds up nothing but a part that it has begun. A worker that has nothing to do spins for a
/// moment, then sleeps; a team of one has no workers and costs nothing. Several teams may live in one process; one team
/// serves one caller at a time.
/// A team on lent threads has no workers: where another library has threads already, two sets of them that spin on the
/// same cores would keep each other from running.
/// Errors: `config_error` for fewer than one thread and more than 65535; what a part throws is thrown again to the
/// caller (the first part's, if several throw) once all parts have ended.
class team {
 public:
  explicit team(int threads = 1);
  /// Of so many lent threads; of its own where `lent` has none.
  team(int threads, const lent_threads& lent);
  ~team() { stop(); }
  team(const team&) = delete;
  team& operator=(const team&) = delete;

  int size() const noexcept { return size_; }

  /// Calls `body(w)` once for every w in [0, parts), on whichever threads: parts must not wait for one another.
  /// Throws `config_error` for more than 65535 parts.
  template <class Body>
  void run(int parts, Body&& body) {
    if (parts <= 1) {
      if (parts == 1) body(0);
      return;
    }
    using body_type = std::remove_reference_t<Body>;
    context_ = const_cast<void*>(static_cast<const void*>(std::addressof(body)));
    call_ = [](void* context, int w) { (*static_cast<body_type*>(context))(w); };
    share(parts);
  }

  /// Cuts [0, n) into contiguous parts, at most `parts_per_thread` for each thread, with borders at multiples of `step`
  /// and at least `grain` elements each, and calls `body(begin, end)` for each. One part for each thread costs least
  /// where threads run at the same speed; with several, those that others hold up do less.
  template <class Body>
  void split(std::int64_t n, std::int64_t grain, std::int64_t step, Body&& body, int parts_per_thread = 1) {
    if (n <= 0) return;
    const std::int64_t steps = (n + step - 1) / step;
    const std::int64_t most = size() == 1 ? 1 : std::int64_t{size()} * parts_per_thread;
    const std::int64_t wanted =
        (std::min)({most, steps, n / (std::max)(grain, std::int64_t{1}), std::int64_t{most_parts}});
    if (wanted <= 1) {
      body(std::int64_t{0}, n);
      return;
    }
    const balanced_split cut{steps, wanted};
    run(static_cast<int>(wanted), [&](int w) {
      const std::int64_t begin = cut.offset(w) * step;
      const std::int64_t end = (std::min)(n, cut.offset(w) * step + cut.size(w) * step);
      body(begin, end);
    });
  }

 private:
  static constexpr int most_parts = 0xffff;

  // Calls `call_` for each part, and throws what the first of those that threw has thrown.
  void share(int parts);
  void share_with_workers(int parts);
  static int checked(int threads) {
    if (threads < 1)
      throw config_error("heddle: a compute backend needs at least 1 thread, got " + std::to_string(threads));
    if (threads > most_parts)
      throw config_error("heddle: a compute backend has at most " + std::to_string(most_parts) + " threads, got " +
                         std::to_string(threads));
    return threads;
  }

  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  /// Waits until `done(value)`: spins for about 100 microseconds, which is what waking a sleeper can cost on a virtual
  /// machine, then sleeps on the value.
  template <class Value, class Done>
  static Value await(std::atomic<Value>& value, Done done) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
    do {
      for (int i = 0; i < 32; ++i) {
        const Value now = value.load(std::memory_order_acquire);
        if (done(now)) return now;
        pause();
      }
    } while (std::chrono::steady_clock::now() < until);
    for (;;) {
      const Value now = value.load(std::memory_order_acquire);
      if (done(now)) return now;
      value.wait(now, std::memory_order_acquire);
    }
  }

  // Computes parts of the round at hand until all are claimed.
  void work() noexcept;
  void attempt(int part) noexcept;
  void serve();

  void stop() noexcept {
    stopping_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    workers_.clear();
  }

  // What a part is computed with. Only who has claimed one reads it, after that, and the round cannot end before; the
  // caller writes it while there is nothing to claim. So a worker that wakes late never sees another round's.
  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  const int size_;
  const lent_threads lent_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  int error_part_ = 0;
  // The parts of the round, and below, in 16 bits, the next to be claimed. One word, for a worker that has looked at
  // an earlier round's number of parts must not claim with it.
  alignas(64) std::atomic<std::uint32_t> claims_{0};
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> pending_{0};  // parts that have not ended
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace heddle::inline v0::compute

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/host/team.hpp>
#endif

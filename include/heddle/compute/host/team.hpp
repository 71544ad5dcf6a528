// heddle/compute/host/team.hpp: a few threads that work together on one kernel at a time.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/durations.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
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
/// threads always computes the same thing. A worker that has nothing to do spins for a moment, then sleeps; a team of
/// one has no workers and costs nothing. Several teams may live in one process; one team serves one caller at a time.
/// A team on lent threads has no workers: where another library has threads already, two sets of them that spin on the same cores
/// would keep each other from running.
/// Errors: `config_error` for fewer than one thread; what a part throws is thrown again to the caller (the first
/// part's, if several throw) once all parts have ended.
class team {
 public:
  explicit team(int threads = 1);
  /// Of so many lent threads; of its own where `lent` has none.
  team(int threads, const lent_threads& lent);
  ~team() { stop(); }
  team(const team&) = delete;
  team& operator=(const team&) = delete;

  int size() const noexcept { return static_cast<int>(errors_.size()); }

  /// Calls `body(w)` once for every w in [0, parts), each on its own thread; the caller takes part 0.
  /// Requires `parts <= size()`.
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

  /// Cuts [0, n) into contiguous parts, one per thread, with borders at multiples of `step` and at least `grain`
  /// elements each, and calls `body(begin, end)` for each.
  template <class Body>
  void split(std::int64_t n, std::int64_t grain, std::int64_t step, Body&& body) {
    if (n <= 0) return;
    const std::int64_t steps = (n + step - 1) / step;
    const std::int64_t wanted =
        (std::min)({static_cast<std::int64_t>(size()), steps, n / (std::max)(grain, std::int64_t{1})});
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
  // Calls `call_` for each part.
  void share(int parts);
  static std::size_t checked(int threads) {
    if (threads < 1)
      throw config_error("heddle: a compute backend needs at least 1 thread, got " + std::to_string(threads));
    return static_cast<std::size_t>(threads);
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

  void attempt(int w) noexcept {
    if (w >= parts_) return;
    try {
      call_(context_, w);
    } catch (...) {
      errors_[static_cast<std::size_t>(w)] = std::current_exception();
    }
  }

  void serve(int w);
  // Throws what the first of the parts that threw has thrown.
  void report();

  void stop() noexcept {
    stopping_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    workers_.clear();
  }

  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int parts_ = 0;
  lent_threads lent_{};
  std::vector<std::exception_ptr> errors_;
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace heddle::inline v0::compute

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/host/team.hpp>
#endif

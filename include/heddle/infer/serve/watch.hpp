// heddle/infer/serve/watch.hpp: a thread that watches an engine for runbook conditions.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/serve/request_queue.hpp>
#include <heddle/observe/conditions.hpp>
#include <heddle/observe/linux_counters.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Settings of a `serve_watch`.
struct watch_options {
  std::chrono::milliseconds period{1000};  ///< a window of the runbook
  std::int64_t most_running = 0;           ///< `engine_options::max_running`; 0: empty rows are not measured
  bool print = true;                       ///< verdicts on stderr when they begin and when they end
  observe::runbook_rule rule{};
  std::string root{};  ///< of the files of `linux_counters`
};

/// Gives an `observe::runbook` once in a period what the queue's statistics and Linux count: requests per second, requests that wait, rows
/// per step, empty rows, seconds per step, segments that were sent twice, the share of the network card. Verdicts are printed and are
/// `heddle:condition{name="..."}`, 0 or 1, in the text of the statistics (/metrics). Rows whose signals are absent are not in it. A window
/// in which the engine took no step has no rows and no seconds per step.
/// Errors: `config_error` for a period that is not positive.
class serve_watch {
 public:
  /// The queue must outlive the watch.
  explicit serve_watch(request_queue& queue, watch_options options = {})
      : queue_(queue), options_(std::move(options)), book_({}, options_.rule), counters_(options_.root) {
    if (options_.period.count() <= 0)
      throw config_error("heddle: infer::serve_watch needs a positive period, got " +
                         std::to_string(options_.period.count()) + " ms");
    last_ = queue_.statistics().counts();
  }
  serve_watch(const serve_watch&) = delete;
  serve_watch& operator=(const serve_watch&) = delete;
  ~serve_watch() { stop(); }

  /// Begins to watch on a thread of its own; once.
  void start() {
    if (thread_.joinable()) return;
    thread_ = std::thread([this] { watch(); });
  }
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// One window of so many seconds, by the caller's own clock; not while the thread runs.
  HEDDLE_INLINE void tick(double seconds);
  /// What holds now. Not while the thread runs.
  const observe::runbook& book() const noexcept { return book_; }

 private:
  void watch() {
    auto last = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, options_.period, [this] { return stopping_; })) {
      lock.unlock();
      const auto now = std::chrono::steady_clock::now();
      tick(std::chrono::duration<double>(now - last).count());
      last = now;
      lock.lock();
    }
  }

  request_queue& queue_;
  watch_options options_;
  observe::runbook book_;
  observe::linux_counters counters_;
  engine_counts last_{};
  std::vector<observe::verdict> told_{};
  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool stopping_ = false;
  std::thread thread_{};
};

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/serve/watch.hpp>
#endif

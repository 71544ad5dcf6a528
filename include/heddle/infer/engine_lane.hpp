// heddle/infer/engine_lane.hpp: runs an engine's steps on a thread that leads a runner.
#pragma once

#include <heddle/core/error.hpp>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace heddle::inline v0::infer {

/// Where `pools` take steps of prompts by default: on the thread that owns them.
struct in_turn {
  template <class Work>
  void start(const Work& work) const {
    work();
  }
  static constexpr bool busy() noexcept { return false; }
  void wait() const noexcept {}
};

/// Work for one other thread, a piece at a time: that thread calls `serve`, the owner everything else. What the owner wrote before `start` the work sees, and
/// what the work wrote the owner sees once `busy` is false. Time-out: how long the owner waits for a thread that serves.
class engine_lane {
 public:
  explicit engine_lane(std::chrono::milliseconds timeout = std::chrono::milliseconds(30'000)) : timeout_(timeout) {}
  engine_lane(const engine_lane&) = delete;
  engine_lane& operator=(const engine_lane&) = delete;

  /// On the other thread: does what is started until `finish`. What work throws the owner gets.
  void serve() {
    std::unique_lock lock(mutex_);
    served_ = true;
    changed_.notify_all();
    while (true) {
      changed_.wait(lock, [&] { return ends_ || work_; });
      if (!work_) break;
      const std::function<void()> work = std::exchange(work_, nullptr);
      lock.unlock();
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      busy_ = false;
      changed_.notify_all();
    }
    served_ = false;
    changed_.notify_all();
  }
  /// Errors: `schedule_error` while there is other work, and after `finish`.
  void start(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (busy_ || ends_)
      throw schedule_error(ends_ ? "heddle: engine_lane: start should not follow finish"
                                 : "heddle: engine_lane: it does one piece of work at a time; call wait first");
    work_ = std::move(work);
    busy_ = true;
    changed_.notify_all();
  }
  /// Whether work is not done.
  bool busy() const {
    const std::lock_guard lock(mutex_);
    return busy_;
  }
  /// Until the work is done. Errors: what it threw, once; `schedule_error` if no thread serves, and the work is not done.
  void wait() {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return !busy_; };
    while (!changed_.wait_for(lock, timeout_, done)) {
      if (served_) continue;
      work_ = nullptr;
      busy_ = false;
      throw schedule_error("heddle: engine_lane: a thread should call serve within " +
                           std::to_string(timeout_.count()) + " ms; none has");
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  /// Lets `serve` return after the work that is there.
  void finish() noexcept {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }

 private:
  std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  std::function<void()> work_{};
  std::exception_ptr error_{};
  bool busy_ = false, served_ = false, ends_ = false;
};

/// Finishes a lane where it goes out of scope, so that the other thread ends also where the owner throws.
class lane_end {
 public:
  explicit lane_end(engine_lane& lane) noexcept : lane_(&lane) {}
  lane_end(const lane_end&) = delete;
  lane_end& operator=(const lane_end&) = delete;
  ~lane_end() { lane_->finish(); }

 private:
  engine_lane* lane_;
};

}  // namespace heddle::inline v0::infer

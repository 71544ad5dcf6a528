// heddle/tensor/async_jobs.hpp: unfinished redistributions of a rank; a wait advances all.
#pragma once

#include <heddle/core/durations.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/ownership.hpp>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// A started redistribution, whatever its layouts are.
class async_job : uncopyable {
 public:
  virtual ~async_job() = default;
  /// Goes on as far as it can without waiting; whether it got anywhere. What is thrown is kept: it is the job's end.
  bool advance() {
    if (done_) return false;
    try {
      return go_on();
    } catch (...) {
      fail(std::current_exception());
      return true;
    }
  }
  /// Ends it: its messages are taken back, and whoever waits for it gets this.
  void fail(std::exception_ptr why) noexcept {
    problem_ = std::move(why);
    done_ = true;
    take_back();
  }
  void give_up() noexcept {
    if (!done_)
      fail(std::make_exception_ptr(
          comm_error("heddle: a redistribution that was started was given up while an exception unwound the stack")));
  }
  bool done() const noexcept { return done_; }
  bool failed() const noexcept { return problem_ != nullptr; }
  void rethrow() const {
    if (failed()) std::rethrow_exception(problem_);
  }
  /// Waits for any message of these jobs, this one among them.
  virtual void wait_for_any(const std::vector<std::shared_ptr<async_job>>& jobs) = 0;

 protected:
  virtual bool go_on() = 0;
  virtual void take_back() noexcept = 0;
  bool done_ = false;

 private:
  std::exception_ptr problem_;
};

// One whose messages are those of a communicator. Jobs that proceed side by side are of one kind of communicator.
template <class Comm>
class messaging_job : public async_job {
 public:
  using request = typename Comm::request;

  void wait_for_any(const std::vector<std::shared_ptr<async_job>>& jobs) override {
    std::vector<request*> started;
    for (const auto& job : jobs)
      for (request& r : static_cast<messaging_job&>(*job).messages()) started.push_back(&r);
    if (started.empty()) return;
    if constexpr (requires { request::wait_any(std::span<request* const>(started)); })
      request::wait_any(std::span<request* const>(started));
    else if (jobs.size() == 1)
      started[0]->wait();  // nobody waits for anything else of this rank
    else
      poll(started);
  }

 protected:
  virtual std::vector<request>& messages() = 0;
  void take_back() noexcept override {
    if constexpr (requires(request& r) { r.cancel(); })
      for (request& r : messages()) r.cancel();
    messages().clear();
  }

 private:
  static constexpr std::chrono::seconds patience{60};
  static void poll(std::span<request* const> started) {
    const auto since = std::chrono::steady_clock::now();
    for (std::chrono::microseconds nap{20};; nap = (std::min)(2 * nap, std::chrono::microseconds(1000))) {
      for (request* r : started)
        if (r->test()) return;
      if (std::chrono::steady_clock::now() - since > patience)
        throw comm_error("heddle: redistribution_queue: none of the messages of what was started has come for 60 s");
      std::this_thread::sleep_for(nap);
    }
  }
};

// Jobs of one rank that proceed side by side, those of all its queues: others may need what one of them has still to send,
// so all go on while one is waited for.
class async_jobs {
 public:
  void add(std::shared_ptr<async_job> job) {
    job->advance();
    if (!job->done()) jobs_.push_back(std::move(job));
  }
  bool progress() {
    bool moved = false;
    for (auto& job : jobs_) moved = job->advance() || moved;
    std::erase_if(jobs_, [](const auto& job) { return job->done(); });
    return moved;
  }
  // Never waits for one while another has messages under way.
  void finish(async_job& job) {
    for (int idle = 0; !job.done();) {
      if (progress()) {
        idle = 0;
      } else if (++idle < 16) {
        std::this_thread::yield();
      } else {
        try {
          job.wait_for_any(jobs_);
        } catch (...) {
          job.fail(std::current_exception());
        }
      }
    }
    job.rethrow();
  }

 private:
  std::vector<std::shared_ptr<async_job>> jobs_;
};

// Those of the rank, wherever the communicator has a place for them; otherwise of their own.
template <class Comm>
std::shared_ptr<async_jobs> jobs_of(Comm& comm) {
  if constexpr (requires { comm.work_under_way(); }) {
    std::weak_ptr<void>& place = comm.work_under_way();
    if (auto there = std::static_pointer_cast<async_jobs>(place.lock())) return there;
    auto made = std::make_shared<async_jobs>();
    place = made;
    return made;
  } else {
    return std::make_shared<async_jobs>();
  }
}

}  // namespace detail
}  // namespace heddle::inline v0

// heddle/infer/serve/run_engine.hpp: runs an engine on this thread for a queue.
#pragma once

#include <heddle/infer/engine.hpp>
#include <heddle/infer/serve/request_queue.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

namespace detail {

// The loop of `run_engine`, and the requests that its engine has.
template <class Engine>
class engine_loop {
 public:
  engine_loop(Engine& engine, request_queue& queue, int most_failures)
      : engine_(engine), queue_(queue), most_failures_(most_failures) {}

  void run() {
    while (queue_.take(work_, engine_.idle()) || !engine_.idle()) {
      for (queue_work& w : work_) take(w);
      if (queue_.aborted()) end_all(finish_reason::cancelled, "the server is shutting down");
      step();
      queue_.publish(engine_.counts());
    }
  }
  // Last events for all that the engine has; it forgets them.
  void end_all(finish_reason reason, const std::string& message) {
    for (auto& [id, l] : live_) {
      engine_.cancel(id);
      put_last(l, reason, message);
    }
    live_.clear();
  }

 private:
  using clock = std::chrono::steady_clock;
  struct live {
    std::shared_ptr<answer_channel> channel{};
    std::size_t choice = 0;
    clock::time_point submitted{};
    clock::time_point last{};
    std::int64_t prompt_tokens = 0;
    std::int64_t answer_tokens = 0;
  };
  static double seconds(clock::duration d) { return std::chrono::duration<double>(d).count(); }

  void put_last(const live& l, finish_reason reason, const std::string& message) {
    queue_.statistics().ended(reason, seconds(clock::now() - l.submitted), l.prompt_tokens, l.answer_tokens);
    l.channel->put({.choice = l.choice, .what = {.index = l.answer_tokens, .finish = reason, .message = message}});
  }

  void take(queue_work& w) {
    switch (w.what) {
      case queue_work::kind::begin: {
        live l{.channel = std::move(w.channel),
               .choice = w.choice,
               .submitted = w.submitted,
               .last = w.submitted,
               .prompt_tokens = static_cast<std::int64_t>(w.asked.prompt.size())};
        try {
          const request_id id = engine_.submit(std::move(w.asked));
          live_.emplace(id, std::move(l));
        } catch (const std::exception& e) {
          put_last(l, finish_reason::error, e.what());
        }
        break;
      }
      case queue_work::kind::finish:
      case queue_work::kind::cancel:
        for (auto& [id, l] : live_) {
          if (l.channel != w.channel) continue;
          if (w.what == queue_work::kind::cancel)
            engine_.cancel(id);
          else if (l.choice == w.choice)
            engine_.finish(id);
        }
        break;
    }
  }

  // A step that fails ends all requests: the engine cannot say which of them it was.
  void step() {
    if (engine_.idle()) return;
    const std::int64_t steps = engine_.counts().steps;
    try {
      for (const event& e : engine_.step()) hand_out(e);
      if (engine_.counts().steps > steps) failed_ = 0;
    } catch (const std::exception& e) {
      end_all(finish_reason::error, e.what());
      if (++failed_ >= most_failures_ || engine_.failed()) throw;
    }
  }

  void hand_out(const event& e) {
    const auto at = live_.find(e.id);
    if (at == live_.end()) return;
    live& l = at->second;
    serve_statistics& s = queue_.statistics();
    if (e.token) {
      const auto now = clock::now();
      if (l.answer_tokens == 0)
        s.first_token(seconds(now - l.submitted));
      else
        s.next_token(seconds(now - l.last));
      l.last = now;
      ++l.answer_tokens;
    }
    l.channel->put({.choice = l.choice, .what = e});
    if (e.finish == finish_reason::none) return;
    s.ended(e.finish, seconds(clock::now() - l.submitted), l.prompt_tokens, l.answer_tokens);
    live_.erase(at);
  }

  Engine& engine_;
  request_queue& queue_;
  int most_failures_;
  std::vector<queue_work> work_{};
  std::map<request_id, live> live_{};
  int failed_ = 0;
};

}  // namespace detail

/// Opens a queue and runs an engine for its requests until the queue drains and all of them ended. `vocabulary`: of the runner's limits.
/// A step that throws ends the requests that the engine has with that error; those that come later are tried. `most_failures`: steps in turn that may throw; 1 for a runner
/// that takes no steps after one that failed, as `model_runner`. After a step with moves that threw (`engine::failed`) none is tried.
/// Errors: what the last of them throws. The queue is closed with the reason then: nobody waits for events that do not come.
template <class Engine>
void run_engine(Engine& engine, std::int64_t vocabulary, request_queue& queue, int most_failures = 3) {
  detail::engine_loop<Engine> loop(engine, queue, most_failures);
  try {
    queue.open(vocabulary, engine.context(), engine.options().end_tokens);
    loop.run();
  } catch (const std::exception& e) {
    loop.end_all(finish_reason::error, e.what());
    queue.close(e.what());
    throw;
  }
  queue.close("the server is shutting down");
}

}  // namespace heddle::inline v0::infer

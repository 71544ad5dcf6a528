// heddle/infer/serve/request_queue.hpp: the bounded queue of requests for an engine.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/serve/answer_channel.hpp>
#include <heddle/infer/serve/statistics.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// The engine is not there: it loads, ends or failed.
struct unavailable_error : error {
  using error::error;
};

/// State of a `request_queue`. `loading`: no engine yet. `open`: requests are accepted. `draining`: what was accepted is finished.
/// `closed`: no engine any more.
enum class queue_state { loading, open, draining, closed };

/// What the thread of an engine is to do, in order.
struct queue_work {
  enum class kind { begin, finish, cancel };
  kind what = kind::begin;
  std::shared_ptr<answer_channel> channel{};
  std::size_t choice = 0;  ///< of `begin` and `finish`; `cancel` ends all choices of the channel
  request asked{};         ///< of `begin`
  std::chrono::steady_clock::time_point submitted{};
};

/// Requests on their way to an engine, which one thread runs with `run_engine`. All members may be called from any thread.
/// Laws: each request that `submit` accepts has exactly one last event in its channel, also if the engine fails; nothing blocks but `take`.
class request_queue {
 public:
  /// `max_waiting`: requests that wait, beyond which `submit` refuses.
  explicit request_queue(std::int64_t max_waiting = 256);

  // ---- for those who have requests ----

  /// Queues all requests of a call; their events come in the channel. Errors: `request_error`, `context_error` (`require_request`);
  /// `queue_full_error` if `max_waiting` requests wait; `unavailable_error` unless the queue is open.
  std::shared_ptr<answer_channel> submit(std::vector<request> requests);
  /// Ends a choice with the reason `stop`: its caller found the end in the text.
  void finish(const std::shared_ptr<answer_channel>& channel, std::size_t choice);
  /// Ends all choices of a channel.
  void cancel(const std::shared_ptr<answer_channel>& channel);

  queue_state state() const;
  /// Errors: `unavailable_error` unless the queue is open.
  void require_open() const;
  /// Requests that did not begin.
  std::int64_t waiting() const;
  /// Most tokens of a prompt and its answer together; 0 while loading.
  std::int64_t context() const;
  std::int64_t vocabulary() const;
  /// Tokens that end answers of the engine.
  std::vector<std::int32_t> end_tokens() const;
  serve_statistics& statistics() noexcept { return statistics_; }
  const serve_statistics& statistics() const noexcept { return statistics_; }

  /// Accepts no further requests; `run_engine` returns when those it has are finished.
  void drain();
  /// As `drain`, and ends what runs.
  void abort();

  // ---- for the thread of the engine ----

  void open(std::int64_t vocabulary, std::int64_t context, std::vector<std::int32_t> end_tokens = {});
  /// Replaces `to` with what is to be done. `wait`: blocks until there is something, or until the queue drains. False if it
  /// drains and nothing is left.
  bool take(std::vector<queue_work>& to, bool wait);
  /// Whether what runs is to be ended.
  bool aborted() const;
  void publish(const engine_counts& counts);
  /// There is no engine any more. Requests that it did not take end with an error that has this reason.
  void close(const std::string& reason);

 private:
  [[noreturn]] void unavailable() const;

  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  std::int64_t max_waiting_;
  queue_state state_ = queue_state::loading;
  bool abort_ = false;
  std::string reason_{};
  std::int64_t vocabulary_ = 0;
  std::int64_t context_ = 0;
  std::vector<std::int32_t> end_tokens_{};
  std::int64_t waiting_ = 0;  // in work_, on its way, and in the engine
  std::int64_t listed_ = 0;   // of these, in work_
  std::vector<queue_work> work_{};
  serve_statistics statistics_{};
};

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/serve/request_queue.hpp>
#endif

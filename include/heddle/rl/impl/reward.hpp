// heddle/rl/impl/reward.hpp: bodies of heddle/rl/reward.hpp.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/rl/reward.hpp>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

namespace heddle::inline v0::rl {
namespace detail {

HEDDLE_INLINE judgement judge_one(const std::function<double(const question&)>& f, const question& of) {
  try {
    const double reward = f(of);
    if (std::isfinite(reward)) return {reward, {}};
    return {0, "the reward is " + number_text(reward)};
  } catch (const std::exception& e) {
    return {0, "the reward threw: " + std::string(e.what())};
  } catch (...) {
    return {0, "the reward threw what is no std::exception"};
  }
}

HEDDLE_INLINE std::vector<judgement> checked_judgements(std::vector<judgement> all, std::size_t questions) {
  if (all.size() != questions)
    throw numeric_error("heddle: " + std::to_string(questions) + " answers should have as many judgements, got " +
                        std::to_string(all.size()));
  for (judgement& j : all)
    if (j.ok() && !std::isfinite(j.reward)) j = {0, "the reward is " + number_text(j.reward)};
  return all;
}

HEDDLE_INLINE void require_some_judged(std::span<const judgement> all) {
  if (!all.empty() && std::none_of(all.begin(), all.end(), [](const judgement& j) { return j.ok(); }))
    throw numeric_error("heddle: the rewards of all " + std::to_string(all.size()) +
                        " answers are missing; the first: " + all.front().missing);
}

}  // namespace detail

// What callers, workers and threads that hang have in common; the last of them ends it.
struct timed::shared {
  using answers = std::vector<std::optional<judgement>>;  // of one call
  struct job {
    question of{};
    std::size_t index = 0;
    std::shared_ptr<answers> to{};
  };
  struct place {                           // of one thread
    std::optional<std::size_t> running{};  // the question's index
    std::chrono::steady_clock::time_point since{};
    bool left_alone = false;
  };
  function f;
  mutable std::mutex m{};
  std::condition_variable work{}, news{};
  std::deque<job> waiting{};
  bool closing = false;
  int hang = 0;

  void serve(place& at, const std::stop_token& stop) {
    std::unique_lock lock(m);
    for (;;) {
      work.wait(lock, [&] { return closing || !waiting.empty(); });
      if (closing) return;
      const job mine = std::move(waiting.front());
      waiting.pop_front();
      at.running = mine.index;
      at.since = std::chrono::steady_clock::now();
      news.notify_all();
      lock.unlock();
      judgement j = detail::judge_one([&](const question& q) { return f(q, stop); }, mine.of);
      lock.lock();
      if (at.left_alone) {
        --hang;
        return;
      }
      at.running.reset();
      (*mine.to)[mine.index] = std::move(j);
      news.notify_all();
    }
  }
};
struct timed::worker {
  std::shared_ptr<shared::place> at{};
  std::jthread thread{};
};

HEDDLE_INLINE timed::timed(std::chrono::milliseconds each, function f, int threads, int most_left)
    : each_(each), threads_(threads), most_left_(most_left), shared_(std::make_shared<shared>()) {
  if (each.count() < 1 || threads < 1 || most_left < 0)
    throw config_error(
        "heddle: rl::timed has at least 1 ms for each answer, 1 thread, and leaves 0 or more alone; got " +
        std::to_string(each.count()) + " ms, " + std::to_string(threads) + " and " + std::to_string(most_left));
  shared_->f = std::move(f);
  for (int i = 0; i < threads_; ++i) hire();
}

HEDDLE_INLINE timed::~timed() {
  {
    const std::lock_guard lock(shared_->m);
    shared_->closing = true;
    for (auto& w : workers_)
      if (w->at->running) leave_alone(*w);  // only behind an error of a call
  }
  shared_->work.notify_all();
}

HEDDLE_INLINE void timed::hire() {
  auto at = std::make_shared<shared::place>();
  std::jthread thread([all = shared_, at](const std::stop_token& stop) { all->serve(*at, stop); });
  workers_.push_back(std::make_unique<worker>(worker{std::move(at), std::move(thread)}));
}

HEDDLE_INLINE void timed::leave_alone(worker& w) {
  w.at->left_alone = true;
  ++shared_->hang;
  w.thread.request_stop();
  w.thread.detach();
}

HEDDLE_INLINE int timed::left() const {
  const std::lock_guard lock(shared_->m);
  return shared_->hang;
}

HEDDLE_INLINE std::vector<judgement> timed::operator()(std::span<const question> questions) {
  std::unique_lock lock(shared_->m);
  const auto to = std::make_shared<shared::answers>(questions.size());
  shared::answers& results = *to;
  for (std::size_t i = 0; i < questions.size(); ++i) shared_->waiting.push_back({questions[i], i, to});
  shared_->work.notify_all();
  const auto done = [&] {
    return std::all_of(results.begin(), results.end(), [](const auto& r) { return r.has_value(); });
  };
  while (!done()) {
    const auto now = std::chrono::steady_clock::now();
    auto next = now + each_;
    std::vector<std::unique_ptr<worker>> stay;
    for (auto& w : workers_) {
      auto& at = *w->at;
      if (!at.running || now < at.since + each_) {
        if (at.running) next = (std::min)(next, at.since + each_);
        stay.push_back(std::move(w));
        continue;
      }
      results[*at.running] = judgement{0, "the reward took more than " + std::to_string(each_.count()) + " ms"};
      leave_alone(*w);
    }
    workers_ = std::move(stay);
    if (shared_->hang > most_left_) {
      shared_->waiting.clear();
      throw error("heddle: " + std::to_string(shared_->hang) + " rewards hang in threads of rl::timed, more than " +
                  std::to_string(most_left_) + "; a subprocess could be ended");
    }
    while (std::ssize(workers_) < threads_) hire();
    if (!done()) shared_->news.wait_until(lock, next);
  }
  std::vector<judgement> all;
  for (auto& r : results) all.push_back(std::move(*r));
  return all;
}

}  // namespace heddle::inline v0::rl

// heddle/rl/reward.hpp: rewards of prompt and answer, and of those that fail or hang.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// What a reward judges: a prompt and an answer to it, as ids of tokens and, where there is a tokenizer, as text.
/// `group`: the number of the prompt in a run. `facts`: what a judge in a process is to know of the prompt, such as the
/// right answer, as JSON; or nothing.
struct question {
  std::vector<std::int32_t> prompt{}, answer{};
  std::string prompt_text{}, answer_text{};
  std::int64_t group = 0;
  std::string facts{};
};

/// A reward, or why it is missing.
struct judgement {
  double reward = 0;
  std::string missing{};  ///< empty: there is a reward
  bool ok() const noexcept { return missing.empty(); }
};

/// A function that judges one answer: `double(const question&)`.
template <class F>
concept reward_function = requires(F& f, const question& q) {
  { f(q) } -> std::convertible_to<double>;
};
/// What judges the answers of a step together: `std::vector<judgement>(std::span<const question>)`, one for each.
template <class F>
concept judge = requires(F& f, std::span<const question> all) {
  { f(all) } -> std::same_as<std::vector<judgement>>;
};

namespace detail {
// Of one answer; `f(question)` may throw anything.
HEDDLE_INLINE judgement judge_one(const std::function<double(const question&)>& f, const question& of);
// What a judge said; rewards that are not finite are missing. Errors: `numeric_error` for another number of judgements.
HEDDLE_INLINE std::vector<judgement> checked_judgements(std::vector<judgement> all, std::size_t questions);
// Errors: `numeric_error`, see `judge_all`.
HEDDLE_INLINE void require_some_judged(std::span<const judgement> all);
}  // namespace detail

/// Judges answers, each by itself: one whose reward is not finite, or is not told, is missing with the reason; the others stay.
template <class Reward>
  requires reward_function<Reward> || judge<Reward>
std::vector<judgement> judge_each(Reward& reward, std::span<const question> questions) {
  if constexpr (judge<Reward>) {
    return detail::checked_judgements(reward(questions), questions.size());
  } else {
    std::vector<judgement> all;
    const std::function<double(const question&)> f = [&](const question& q) { return static_cast<double>(reward(q)); };
    for (const question& q : questions) all.push_back(detail::judge_one(f, q));
    return all;
  }
}
/// The same for all answers of a step. Errors: `numeric_error` where all of them are missing, with the first reason.
template <class Reward>
  requires reward_function<Reward> || judge<Reward>
std::vector<judgement> judge_all(Reward& reward, std::span<const question> questions) {
  std::vector<judgement> all = judge_each(reward, questions);
  detail::require_some_judged(all);
  return all;
}

/// A reward function on threads of its own; an answer that takes too long is missing, and the step goes on. C++ cannot
/// end a thread: one that hangs is asked to stop by the `std::stop_token`, which the function may look at, is left
/// alone, and another takes its place. It keeps a copy of its question and of the function, and ends with the
/// function's return or with the program; so a function that may hang must own what it uses, or refer to what lives as
/// long as the program.
class timed {
 public:
  using function = std::function<double(const question&, std::stop_token)>;
  /// At most `most_left` threads may hang at once. Errors: `config_error` for what is not positive.
  HEDDLE_INLINE timed(std::chrono::milliseconds each, function f, int threads = 1, int most_left = 16);
  template <reward_function F>
    requires std::copy_constructible<F>
  timed(std::chrono::milliseconds each, F f, int threads = 1, int most_left = 16)
      : timed(each, function([f = std::move(f)](const question& q, const std::stop_token&) mutable {
                return static_cast<double>(f(q));
              }),
              threads, most_left) {}
  timed(const timed&) = delete;
  timed& operator=(const timed&) = delete;
  HEDDLE_INLINE ~timed();  // waits for no thread that hangs

  /// Errors: `error` where more than `most_left` threads hang.
  HEDDLE_INLINE std::vector<judgement> operator()(std::span<const question> questions);
  /// Threads that hang now.
  HEDDLE_INLINE int left() const;

 private:
  struct shared;
  struct worker;
  HEDDLE_INLINE void hire();
  HEDDLE_INLINE void leave_alone(worker& w);  // the mutex is held
  std::chrono::milliseconds each_;
  int threads_, most_left_;
  std::shared_ptr<shared> shared_;
  std::vector<std::unique_ptr<worker>> workers_{};
};

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/reward.hpp>
#endif

// heddle/train/periodic_work.hpp: something that a trainer does after some of its steps.
#pragma once

#include <heddle/core/error.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace heddle::inline v0::train {

/// For `trainer::run`: calls `work(trainer)` after every `steps`-th step and after the last of the run; `steps` 0: after
/// the last only. With `post_validation` the other steps then need not wait for their gradient norm.
/// Errors: `config_error` for less than 0.
template <class Work>
class every {
 public:
  every(std::int64_t steps, Work work) : steps_(steps), work_(std::move(work)) {
    if (steps < 0)
      throw config_error("heddle: every: work is done after every 1 or more steps, or 0 for the last, not " +
                         std::to_string(steps));
  }
  /// Whether there is work behind step `done` of `last`, counted from 1.
  bool due(std::int64_t done, std::int64_t last) const noexcept {
    return done == last || (steps_ > 0 && done % steps_ == 0);
  }
  template <class Trainer>
  void operator()(Trainer& trainer) {
    work_(trainer);
  }

 private:
  std::int64_t steps_;
  Work work_;
};

namespace detail {

struct nothing_after_a_step {
  static constexpr bool due(std::int64_t, std::int64_t) noexcept { return false; }
  template <class Trainer>
  void operator()(Trainer&) const noexcept {}
};

// Whoever does not say when, has work behind every step.
template <class Work>
bool is_due(const Work& work, std::int64_t done, std::int64_t last) {
  if constexpr (requires { work.due(done, last); })
    return work.due(done, last);
  else
    return true;
}

}  // namespace detail

}  // namespace heddle::inline v0::train

// heddle/infer/timed_steps.hpp: a runner that records times and rows of steps.
#pragma once

#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/sim/served_load.hpp>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// Runs steps of `runner`, which must outlive it, and records them as those of `ranks` ranks from `first_rank` on, for `sim::served_chart`: seconds since `origin`, which runners
/// in one picture have in common. A sequence with one row counts as one of an answer, with more as one of a prompt.
template <class Runner>
class timed_steps {
 public:
  using scalar = typename Runner::scalar;
  using capabilities = runner_capabilities<Runner>;
  using clock = std::chrono::steady_clock;

  timed_steps(Runner& runner, int first_rank, int ranks, clock::time_point origin)
      : runner_(&runner), first_rank_(first_rank), ranks_(ranks), origin_(origin) {}
  step_limits limits() const { return runner_->limits(); }
  void run(const step& s, std::span<scalar> logits) {
    sim::served_span span{.first_rank = first_rank_, .ranks = ranks_, .begin = seconds()};
    runner_->run(s, logits);
    for (const sequence_rows& rows : s.sequences) (rows.rows > 1 ? span.prompt_rows : span.answer_rows) += rows.rows;
    span.end = seconds();
    spans_.push_back(span);
  }
  std::span<const sim::served_span> spans() const noexcept { return spans_; }

 private:
  double seconds() const { return std::chrono::duration<double>(clock::now() - origin_).count(); }

  Runner* runner_;
  int first_rank_, ranks_;
  clock::time_point origin_;
  std::vector<sim::served_span> spans_{};
};

}  // namespace heddle::inline v0::infer

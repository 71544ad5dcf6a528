// heddle/train/eager_step.hpp: a step whose gradient norm is known before weights change.
#pragma once

#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/step_sums.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::train::detail {

// Of a step that begins.
template <class Options>
step_report new_report(std::int64_t step, const Options& o, std::int64_t tokens) {
  return {.step = step, .steps = o.steps, .learning_rate = o.learning_rate(step), .tokens = tokens};
}
inline step_report completed(step_report report, const step_result& result, std::int64_t nanoseconds) noexcept {
  report.loss = result.loss;
  report.gradient_norm = result.gradient_norm;
  report.targets = std::llround(static_cast<double>(report.tokens) / result.gradient_scale);
  report.seconds = static_cast<double>(nanoseconds) * 1e-9;
  return report;
}

// What an executor calls in a run of the table: finished forwards, gradients to reduce, activations that come back.
template <class Run>
struct step_hooks {
  Run& run;
  void forward_done(int stage, int microbatch, int slot) {
    auto& h = run.held.at(stage);
    if (h.part + 1 == run.parts.parts()) run.losses.take(h.stage, microbatch, slot);
  }
  void reduce_gradient(int stage) { run.gradients.complete(stage, run.observing()); }
  void recompute(int stage, int /*microbatch*/, int slot) {
    model::of_stage::recompute(run.held.at(stage).stage, slot);
  }
  void reload(int stage, int /*microbatch*/, int slot) { model::of_stage::reload(run.held.at(stage).stage, slot); }
};

/// The step of a trainer without a policy for it: gradients, their norm over all ranks, the optimizer's step.
template <class Run>
struct eager_step {
  explicit eager_step(Run&) noexcept {}

  template <class Data>
  step_report step(Run& run, const Data& data) {
    const std::int64_t start = now_ns();
    const step_result result = run.compute_gradients(data, hooks(run));
    const step_report report = run.new_report();
    run.apply(result);
    return completed(report, result, now_ns() - start);
  }
  static step_hooks<Run> hooks(Run& run) noexcept { return {run}; }
  // Nothing of a step is on its way when it returns, and the next one needs nothing of it.
  static constexpr bool pending() noexcept { return false; }
  static constexpr std::int64_t taken_back() noexcept { return 0; }
  static void forget() noexcept {}
};

// The step that a policy of the strategy brings.
template <class Run>
consteval auto chosen_step() {
  using strategy = typename Run::strategy;
  if constexpr (Run::steps_captured)
    return std::type_identity<typename strategy::steps::template step<Run>>{};
  else if constexpr (strategy::norm_check::steps_first)
    return std::type_identity<typename strategy::norm_check::template step<Run>>{};
  else
    return std::type_identity<eager_step<Run>>{};
}
template <class Run>
using step_of = typename decltype(chosen_step<Run>())::type;

}  // namespace heddle::inline v0::train::detail

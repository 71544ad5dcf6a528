// heddle/train/step_ahead.hpp: the state of a step whose gradient norm is still being reduced.
#pragma once

#include <heddle/train/nonfinite.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/step_sums.hpp>

#include <cmath>
#include <cstdint>
#include <optional>

namespace heddle::inline v0::train::detail {

struct step_ahead {
  bool pending = false;
  std::int64_t step = 0;
  std::int64_t begin = 0, next_begin = 0;  // nanoseconds; 0: no other step has begun
  step_result result{};
  step_report report{};
  nonfinite_finding finding{};        // of this rank, before the next step's forwards
  std::optional<step_report> done{};  // finished, and not told yet
  bool optimistic = false;            // stages may step before the norm is known,
  bool stepped = false;               // and one has

  /// Runs `work`, in which they may; if that throws, `take_back` is called for those that have.
  template <class Work, class TakeBack>
  void optimistically(Work&& work, TakeBack&& take_back) {
    optimistic = true;
    stepped = false;
    try {
      work();
    } catch (...) {
      optimistic = false;
      if (stepped) take_back();
      throw;
    }
    optimistic = false;
  }
};

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

}  // namespace heddle::inline v0::train::detail

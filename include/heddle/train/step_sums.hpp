// heddle/train/step_sums.hpp: sums of a training step over all ranks, and its result.
#pragma once

#include <heddle/core/error.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::train {

/// What ranks add up in a step: losses, targets that count, squares of gradients, each part counted on one rank only;
/// and how many ranks were asked to stop.
struct step_sums {
  double loss = 0, targets = 0, squares = 0, stops = 0;

  friend step_sums operator+(const step_sums& a, const step_sums& b) noexcept {
    return {a.loss + b.loss, a.targets + b.targets, a.squares + b.squares, a.stops + b.stops};
  }
};

/// What the sums over all ranks say of a step.
struct step_result {
  double loss = 0;            ///< mean over the step's targets
  double gradient_norm = 0;   ///< of the gradient of that mean, over all axes
  double gradient_scale = 1;  ///< what `stage().gradients()` must be multiplied by to be that gradient

  bool is_finite() const noexcept { return std::isfinite(loss) && std::isfinite(gradient_norm); }
  bool is_of_no_target() const noexcept { return std::isinf(gradient_scale); }
};

/// `targets`: of the step, ignored ones included, as the gradients were scaled.
inline step_result result_of(const step_sums& sums, std::int64_t targets) noexcept {
  step_result result;
  result.gradient_scale = static_cast<double>(targets) / sums.targets;
  result.loss = sums.loss / sums.targets;
  result.gradient_norm = std::sqrt(sums.squares) * result.gradient_scale;
  return result;
}

namespace detail {

inline void refuse_no_targets(const step_result& r, std::int64_t step) {
  if (r.is_of_no_target())
    throw config_error("heddle: step " + std::to_string(step + 1) + " has no target to learn from: all are ignored");
}

}  // namespace detail

}  // namespace heddle::inline v0::train

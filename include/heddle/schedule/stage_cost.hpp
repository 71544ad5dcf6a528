// heddle/schedule/stage_cost.hpp: costs of one microbatch on one stage, and totals of a schedule.
#pragma once

#include <heddle/core/config.hpp>

#include <vector>

namespace heddle::inline v0::schedule {

/// What one microbatch costs on one stage. Times in any one unit. A forward keeps `bytes`; of these I lets go
/// `released_by_input`, W the rest. By default one activation is one byte: limits then count microbatches.
struct stage_cost {
  double forward = 1, backward_input = 1, backward_weight = 1;
  double bytes = 1, released_by_input = 0;

  /// Bytes of `whole` microbatches between F and I, and of `rest` between I and W. From counts, so that it is exact.
  constexpr double held(int whole, int rest) const noexcept {
    return (whole + rest) * bytes - rest * released_by_input;
  }
};

/// What a schedule comes to: `makespan` in the unit of the times, `peak_bytes` per rank.
struct schedule_outcome {
  double makespan = 0;
  std::vector<double> peak_bytes;
};

}  // namespace heddle::inline v0::schedule

// heddle/plan/activation_choice.hpp: a choice of keeping, recomputing or offloading per block.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/sim/activation_offload.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// The blocks of a rank as they run with microbatches of one size, as measured. Units: seconds, bytes.
struct microbatch_costs {
  int samples = 1;
  std::vector<sim::offloaded_layer> blocks;
};

/// What a rank has, and what a step asks of it. Units: bytes, bytes per second.
struct activation_limits {
  double bytes = 0;            ///< for activations
  sim::offload_rates rates{};  ///< of the store
  int samples = 1;             ///< of a step
  int stages = 1;              ///< of the pipeline
  sim::ahead ahead{};          ///< blocks that are brought back before their backward
};

/// What becomes of each block's activations, and what comes of it.
struct activation_choice {
  int samples = 0;                          ///< of a microbatch; 0: nothing fits
  std::vector<sim::activation_use> uses{};  ///< of each block
  double step_seconds = std::numeric_limits<double>::infinity();
  double samples_per_second = 0;
  double peak_bytes = 0;
  sim::offload_outcome microbatch{};
  std::int64_t simulated = 0;  ///< choices
  bool proven = true;          ///< no choice is faster; false where `most_simulated` of a size ended the search
  bool fits() const noexcept { return samples > 0; }
};

/// Seconds of a step and bytes at its peak with one choice. The microbatches of a step, m, take as long as m + stages - 1 of them, which is the
/// bubble (stages - 1) / (m + stages - 1) of 1F1B. Beside the microbatch that runs, those in flight, stages at most, hold what stays.
/// Errors: `config_error` for a size that does not divide the samples of a step, and those of `sim::simulate_activations`.
HEDDLE_INLINE activation_choice simulate_choice(const microbatch_costs& costs, const activation_limits& limits,
                                                std::span<const sim::activation_use> uses);

/// The choice with the fewest seconds of a step among all uses of all blocks and all sizes whose peak is within the limit. Branch and bound over
/// blocks: no choice is faster than one that computes again only what must be, were the store always as fast as it can.
/// Errors: `config_error` for sizes that do not divide the samples of a step, without blocks or with other numbers of them, and those of
/// `sim::simulate_activations`. Seconds are the fewest to one part in 10^9; of good choices that take as long
/// the one that writes less is taken.
/// Source: the recompute-offload-keep choice of Wu et al., arXiv:2408.10013 (SSDTrain); bubble: Narayanan et al., arXiv:2104.04473.
HEDDLE_INLINE activation_choice choose_activations(std::span<const microbatch_costs> sizes,
                                                   const activation_limits& limits,
                                                   std::int64_t most_simulated = 1 << 16);

/// The choices for less and less memory, the first for `limits.bytes`, in steps of a part of its peak, down to the least that fits.
HEDDLE_INLINE std::vector<activation_choice> activation_curve(std::span<const microbatch_costs> sizes,
                                                              activation_limits limits, int steps = 20,
                                                              std::int64_t most_simulated = 1 << 14);

/// The blocks as letters, k, r and o, and numbers: "microbatches of 4: ookk, 12.5 samples/s, 3.1 GB at the peak".
HEDDLE_INLINE std::string to_string(const activation_choice& choice);

/// Draws a curve: samples per second from left to right, bytes at the peak upwards.
HEDDLE_INLINE std::string activation_curve_svg(std::span<const activation_choice> curve, const std::string& title);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/activation_choice.hpp>
#endif

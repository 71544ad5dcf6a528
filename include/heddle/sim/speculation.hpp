// heddle/sim/speculation.hpp: costs of speculative decoding: tokens, time, speedup.
#pragma once

#include <cstdint>

namespace heddle::inline v0::sim {

/// Times of the parts of a step of speculation, in units of a step that decodes one token: `verify` of the model with all proposed rows, `draft` of one of `passes` passes of the drafter.
struct speculation_times {
  double verify = 1;
  double draft = 0;
  std::int64_t passes = 0;
  constexpr double step() const noexcept { return verify + static_cast<double>(passes) * draft; }
};

/// How many times as fast as plain decoding speculation is that gains `tokens` in a step, the model's own one among them: 1 + the mean number of accepted proposals.
/// Source: Cai et al. 2024, arXiv:2401.10774, section 3 (acceleration rate and overhead); Falcon, arXiv:2412.12639.
constexpr double speculation_speedup(double tokens, const speculation_times& times) noexcept {
  return tokens / times.step();
}
/// The time of a step, in units of a plain one, that a measured speedup tells of.
constexpr double speculation_step(double tokens, double speedup) noexcept {
  return tokens / speedup;
}
/// The share of answer tokens that were proposed, of `tokens` in a step.
constexpr double drafted_share(double tokens) noexcept {
  return (tokens - 1) / tokens;
}

}  // namespace heddle::inline v0::sim

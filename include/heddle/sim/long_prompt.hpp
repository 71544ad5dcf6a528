// heddle/sim/long_prompt.hpp: time to first token on ranks that share the prompt.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0::sim {

/// A prompt of so many tokens on so many ranks, and the time until its first token. Units: seconds.
struct measured_prompt {
  double tokens = 0;
  double ranks = 0;
  double seconds = 0;
};

/// Time of layers that see all tokens: N^2 / P, as the measurement says.
constexpr double seconds_of_attention(const measured_prompt& m, double tokens, double ranks) noexcept {
  return m.seconds * (tokens / m.tokens) * (tokens / m.tokens) * m.ranks / ranks;
}

/// A sequence's states on their way along the ranks, layer by layer and in so many pieces, which a rank sends on while it receives the next one.
struct passed_states {
  double layers = 0;
  double bytes = 0;  ///< of a layer's state
  double blocks = 1;
  double bytes_per_second = 0;
  double latency = 0;

  /// What one more rank adds to the time of the last one. Units: seconds.
  constexpr double seconds_of_a_rank() const noexcept { return layers * (latency + bytes / blocks / bytes_per_second); }
};
/// Time of layers with windows and states: that of a rank's own tokens, N / P, and more for each rank that states go through.
/// Source: SpikingBrain, arXiv:2509.05276, table of times to the first token (ZeCO).
constexpr double seconds_of_states(const measured_prompt& m, const passed_states& s, double tokens,
                                   double ranks) noexcept {
  const double pipeline = s.seconds_of_a_rank();
  return (m.seconds - (m.ranks - 1) * pipeline) * (tokens / m.tokens) * m.ranks / ranks + (ranks - 1) * pipeline;
}

}  // namespace heddle::inline v0::sim

// heddle/plan/sequence_costs.hpp: seconds and memory of a sequence on ranks that share it.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// Profiled costs of a model, forward and backward. Units: seconds, bytes, tokens. What is zero costs nothing.
/// Source: Wang et al. 2024, arXiv:2412.01523, section 4 (FlexSP); Ge et al. 2025, arXiv:2502.21231, section 4 (ByteScale).
struct sequence_costs {
  double square = 0;            ///< seconds of one rank for a sequence of s tokens: square * s * s + linear * s
  double linear = 0;
  double fixed = 0;             ///< seconds of each group in each microbatch, whatever it has
  double exchanged_bytes = 0;   ///< of a token in all all-to-alls of its heads, before they are shared out
  /// Bytes per second of a rank in an all-to-all of that many ranks and more, in the order of the ranks.
  std::vector<std::pair<int, double>> exchange_rate{};
  double ring_bytes = 0;        ///< of a token's keys and values and their gradients, as they go around a ring
  double ring_rate = std::numeric_limits<double>::infinity();  ///< bytes per second of a rank
  double held_bytes = 0;        ///< of activations, for each token
  double offload_rate = 0;      ///< bytes per second to the memory of the host; 0: nothing is offloaded
  double most_offloaded = 0.9;  ///< at most this part of the activations

  /// Seconds of the computation of a sequence on each of `ranks` ranks.
  double compute(std::int64_t s, int ranks) const noexcept {
    const auto n = static_cast<double>(s);
    return (square * n * n + linear * n) / ranks;
  }
  /// Seconds of its all-to-alls (`carrier::ulysses`), which stand between computations.
  double exchange(std::int64_t s, int ranks) const noexcept {
    if (ranks == 1 || exchanged_bytes == 0) return 0;
    double rate = std::numeric_limits<double>::infinity();
    for (const auto& [from, bytes_per_second] : exchange_rate)
      if (ranks >= from) rate = bytes_per_second;
    return exchanged_bytes * static_cast<double>(s) / ranks / rate;
  }
  /// Seconds of its messages around a ring (`carrier::kv_ring`), which run beside computations.
  double ring(std::int64_t s, int ranks) const noexcept {
    return ranks == 1 ? 0 : ring_bytes * static_cast<double>(s) * (ranks - 1) / ranks / ring_rate;
  }
  /// Seconds of a sequence on each of `ranks` ranks, without `fixed`.
  double of(std::int64_t s, int ranks) const noexcept {
    const double computed = compute(s, ranks), sent = ring(s, ranks);
    return (computed > sent ? computed : sent) + exchange(s, ranks);
  }
  /// Tokens that a rank has memory for beside `other_bytes` of weights, gradients and optimizer state.
  std::int64_t capacity(double bytes, double other_bytes) const {
    if (!(held_bytes > 0))
      throw config_error("heddle: sequence_costs: held_bytes should be above 0 to say how many tokens fit, got " +
                         std::to_string(held_bytes));
    return static_cast<std::int64_t>(std::floor((bytes - other_bytes) / held_bytes));
  }
  /// The part of a sequence's activations that goes to the host and comes back behind its computation.
  double offloaded(std::int64_t s) const noexcept {
    if (offload_rate == 0 || held_bytes == 0) return 0;
    const double hidden = offload_rate * (square * static_cast<double>(s) + linear) / held_bytes;
    return hidden < most_offloaded ? hidden : most_offloaded;
  }
  /// The fewest ranks, each with room for `tokens_per_rank` tokens, that hold a sequence, with what is offloaded away.
  int least_ranks(std::int64_t s, std::int64_t tokens_per_rank) const noexcept {
    const double kept = (1 - offloaded(s)) * static_cast<double>(s);
    const auto ranks = static_cast<int>(std::ceil(kept / static_cast<double>(tokens_per_rank)));
    return ranks < 1 ? 1 : ranks;
  }

  friend bool operator==(const sequence_costs&, const sequence_costs&) = default;

  /// Errors: `config_error` for what is negative or no number.
  void validate() const {
    const auto require = [](double x, const char* name, double most = std::numeric_limits<double>::infinity()) {
      if (!(x >= 0 && x <= most))
        throw config_error(std::string("heddle: sequence_costs: ") + name + " should be " +
                           (most == 1 ? "in [0, 1]" : "at least 0") + ", got " + std::to_string(x));
    };
    require(square, "square"), require(linear, "linear"), require(fixed, "fixed");
    require(exchanged_bytes, "exchanged_bytes"), require(ring_bytes, "ring_bytes"), require(ring_rate, "ring_rate");
    require(held_bytes, "held_bytes"), require(offload_rate, "offload_rate");
    require(most_offloaded, "most_offloaded", 1);
    int before = 0;
    for (const auto& [ranks, rate] : exchange_rate) {
      require(rate, "exchange_rate");
      if (ranks <= before)
        throw config_error("heddle: sequence_costs: exchange_rate should name rising numbers of ranks, got " +
                           std::to_string(ranks) + " behind " + std::to_string(before));
      before = ranks;
    }
  }
};

/// All costs, exactly: what ranks compare.
inline std::string to_string(const sequence_costs& c) {
  std::string text;
  const auto add = [&](double x) {
    char number[40];
    std::snprintf(number, sizeof number, "%a", x);
    text += text.empty() ? "" : ",";
    text += number;
  };
  for (const double x : {c.square, c.linear, c.fixed, c.exchanged_bytes, c.ring_bytes, c.ring_rate, c.held_bytes,
                         c.offload_rate, c.most_offloaded})
    add(x);
  for (const auto& [ranks, rate] : c.exchange_rate) add(ranks), add(rate);
  return text;
}

}  // namespace heddle::inline v0::plan

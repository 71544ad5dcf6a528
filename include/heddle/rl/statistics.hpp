// heddle/rl/statistics.hpp: statistics of tokens: distance from the drawing policy.
#pragma once

#include <heddle/rl/objective.hpp>

#include <cmath>

namespace heddle::inline v0::rl {

/// Sums over tokens that count, which a policy's head adds to `options.model.statistics`, where that is no null pointer,
/// in each forward pass on ranks of the last stage. Ranks that share rows (tp) add the same, so that means of the sum
/// over all ranks are those of the tokens. w = exp(log pi - log mu), of the behaviour mu that drew the token.
struct statistics {
  double tokens = 0, weights = 0, squares = 0;  ///< their number, sum of w, sum of w^2
  double flat = 0;                              ///< tokens with an advantage, but without slope: clipped, or cut
  double behaviour = 0, reference = 0;          ///< sums of k3 = e^-d - 1 + d, of log pi less theirs

  void add(double lp, const token& t, const term& x) noexcept {
    const double w = detail::ratio_of(lp - t.behaviour);
    const auto k3 = [](double d) { return detail::ratio_of(-d) - 1 + d; };
    tokens += 1, weights += w, squares += w * w;
    if (t.advantage != 0 && x.slope == 0) flat += 1;
    behaviour += k3(lp - t.behaviour), reference += k3(lp - t.reference);
  }
  friend statistics operator+(const statistics& a, const statistics& b) noexcept {
    return {a.tokens + b.tokens, a.weights + b.weights,     a.squares + b.squares,
            a.flat + b.flat,     a.behaviour + b.behaviour, a.reference + b.reference};
  }
  /// The effective sample size over the number of tokens: (sum w)^2 / (n sum w^2), in (0, 1]; 1 where all weights are
  /// equal, as they are on policy. Source: Kong 1992.
  double effective_share() const noexcept { return squares > 0 ? weights * weights / (tokens * squares) : 1; }
  double mean_weight() const noexcept { return tokens > 0 ? weights / tokens : 1; }
  double flat_share() const noexcept { return tokens > 0 ? flat / tokens : 0; }
  /// Mean divergences to what drew the tokens, and to the reference. On policy the first is what an engine and a trainer
  /// round differently.
  double behaviour_divergence() const noexcept { return tokens > 0 ? behaviour / tokens : 0; }
  double reference_divergence() const noexcept { return tokens > 0 ? reference / tokens : 0; }
};

}  // namespace heddle::inline v0::rl

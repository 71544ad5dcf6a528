// heddle/infer/acceptance.hpp: rules of accepting proposed tokens: equal draws, and typical.
#pragma once

#include <heddle/infer/event.hpp>

#include <algorithm>
#include <cmath>
#include <span>

namespace heddle::inline v0::infer {

/// A proposal is accepted while it is the token that is drawn at its place: answers are those without speculation, token for token.
struct equal_draws {
  static constexpr bool lossless = true;
};

/// A proposal is accepted if its probability is above min(epsilon, delta exp(-H)), where H is the entropy, in nats, of the distribution at its place, after temperature and
/// filters. Of the accepted paths the longest is taken, of equally long ones the likeliest; the token after it is the likeliest one. Answers do not have the
/// distribution of the model, and nothing is drawn: a request's seed plays no part. Requests at temperature 0, and those with penalties or a mask, are decoded by equal draws.
/// Source: Cai et al. 2024, arXiv:2401.10774, section 2.3.1.
struct typical_acceptance {
  static constexpr bool lossless = false;
  double epsilon = 0.09;
  double delta = 0.3;

  /// The probability above which tokens are accepted. Shapes: the tokens that may follow, with their log-probabilities.
  double threshold(std::span<const token_probability> distribution) const {
    double entropy = 0;
    for (const token_probability& t : distribution)
      if (t.log_probability > -700) entropy -= std::exp(t.log_probability) * t.log_probability;
    return (std::min)(epsilon, delta * std::exp(-entropy));
  }
};

}  // namespace heddle::inline v0::infer

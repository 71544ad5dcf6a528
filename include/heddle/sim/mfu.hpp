// heddle/sim/mfu.hpp: FLOP count of a transformer and model FLOP utilisation, constexpr.
#pragma once

namespace heddle::inline v0::sim {

/// A decoder with four times as many inner as hidden units, and what it is trained on.
struct transformer_shape {
  double layers = 0, hidden = 0;
  double sequence = 0;    ///< tokens of a sample
  double vocabulary = 0;  ///< of the output layer
};

/// How the products of attention are counted.
enum class attention_flops {
  all,     ///< of all keys, as Megatron-LM does
  causal,  ///< of the half that a causal mask leaves
};

/// FLOPs of forward and backward for each token, without recomputation: F = 72 l h^2 (1 + s / (6 h) + V / (12 l h)); s counts half
/// for `causal`. Source: Narayanan et al. 2021, arXiv:2104.04473, appendix, with activations kept.
constexpr double flops_per_token(const transformer_shape& t,
                                 attention_flops attention = attention_flops::all) noexcept {
  const double share = attention == attention_flops::causal ? 0.5 : 1.0;
  return 72 * t.layers * t.hidden * t.hidden *
         (1 + share * t.sequence / (6 * t.hidden) + t.vocabulary / (12 * t.layers * t.hidden));
}

/// Model FLOP utilisation: the FLOPs that the model needs over what `devices` could do in the time. Units: seconds, FLOP/s of a device.
/// Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
constexpr double mfu(double tokens, double flops_of_token, double seconds, double devices, double peak) noexcept {
  return tokens * flops_of_token / (seconds * devices * peak);
}

}  // namespace heddle::inline v0::sim

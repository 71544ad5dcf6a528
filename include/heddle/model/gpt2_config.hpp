// heddle/model/gpt2_config.hpp: sizes of a GPT-2, with parameter and operation counts.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a GPT-2. Units: `context` in tokens, `width` in elements of the residual stream.
/// Source: Radford et al. 2019, "Language models are unsupervised multitask learners"; Hugging Face `GPT2Config`.
struct gpt2_config {
  /// The largest numbers that are accepted: beyond them bytes and products of a model would leave 64 bits.
  static constexpr int most_layers = 65536, most_width = 1048576, most_tokens = 16777216;

  int layers = 12;
  int heads = 12;
  int width = 768;
  int context = 1024;
  int vocabulary = 50257;
  double epsilon = 1e-5;            ///< added to the variance by layer norms
  double initial_deviation = 0.02;  ///< of weights and embeddings; residual projections: / sqrt(2 layers)

  constexpr int head_dim() const noexcept { return heads > 0 ? width / heads : 0; }
  constexpr int hidden() const noexcept { return 4 * width; }

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const;

  /// Trained numbers, the tied token embedding counted once: `V D + T D + L (12 D^2 + 13 D) + 2 D`.
  constexpr std::int64_t parameters() const noexcept {
    const std::int64_t d = width;
    return vocabulary * d + context * d + layers * (12 * d * d + 13 * d) + 2 * d;
  }

  /// Numbers that enter a matrix product for every token: the four linear layers of each block and the tied head.
  constexpr std::int64_t matmul_parameters() const noexcept {
    const std::int64_t d = width;
    return layers * 12 * d * d + vocabulary * d;
  }

  /// Floating-point operations of one training step per token: forward and backward matrix products (2 and 4 per
  /// weight that enters one), and the two attention products over the causal half, 6 L D (S + 1).
  /// Look-ups, norms, GELU, softmax and the optimizer are not counted. `sequence` 0 means the context.
  /// Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; the attention term counts only unmasked pairs.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double s = sequence > 0 ? sequence : context;
    return 6.0 * static_cast<double>(matmul_parameters()) + 6.0 * layers * static_cast<double>(width) * (s + 1.0);
  }

  friend constexpr bool operator==(const gpt2_config&, const gpt2_config&) = default;
};

/// `"gpt2 layers=12 heads=12 width=768 context=1024 vocabulary=50257"`, and epsilon where it is another one: what two
/// configurations must share so that the weights of one are those of the other.
HEDDLE_INLINE std::string to_string(const gpt2_config& c);

/// GPT-2 small, the least of the four published sizes: 12 layers of width 768.
constexpr gpt2_config gpt2_124m() noexcept {
  return {.layers = 12, .heads = 12, .width = 768};
}
/// GPT-2 medium: 24 layers of width 1024.
constexpr gpt2_config gpt2_355m() noexcept {
  return {.layers = 24, .heads = 16, .width = 1024};
}
/// GPT-2 large: 36 layers of width 1280.
constexpr gpt2_config gpt2_774m() noexcept {
  return {.layers = 36, .heads = 20, .width = 1280};
}
/// GPT-2 XL: 48 layers of width 1600.
constexpr gpt2_config gpt2_1558m() noexcept {
  return {.layers = 48, .heads = 25, .width = 1600};
}

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/gpt2_config.hpp>
#endif

// heddle/model/llama_config.hpp: sizes of a Llama, with parameter and operation counts.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/compute/yarn_scaling.hpp>
#include <heddle/core/error.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Llama: RMSNorm before each half of a block, rotary positions on queries and keys, grouped queries,
/// SwiGLU, no biases, a head of its own. Units: `context` in tokens, `width` in elements of the residual stream, `ffn` in
/// elements of a block's hidden layer.
/// Source: Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783; Hugging
/// Face `LlamaConfig`.
struct llama_config {
  /// The largest numbers that are accepted: beyond them bytes and products of a model would leave 64 bits.
  static constexpr int most_layers = 65536, most_width = 1048576, most_tokens = 16777216;

  int layers = 32;
  int heads = 32;     ///< query heads
  int kv_heads = 32;  ///< key-value heads: query head h reads key-value head h * kv_heads / heads
  int width = 4096;
  int ffn = 11008;
  int context = 4096;
  int vocabulary = 32000;
  double theta = 10000;               ///< base of the rotary frequencies
  compute::rotary_scaling scaling{};  ///< factor 1: frequencies as they are
  double epsilon = 1e-5;              ///< added to the mean square by norms
  double initial_deviation = 0.02;    ///< of weights and embeddings
  int head_elements = 0;              ///< of each head; 0: width / heads
  compute::yarn_scaling yarn{};       ///< instead of `scaling`, where its factor is not 1

  constexpr int head_dim() const noexcept { return head_elements > 0 ? head_elements : heads > 0 ? width / heads : 0; }
  /// Of all query heads together: `width`, unless `head_elements` says otherwise.
  constexpr int query_width() const noexcept { return heads * head_dim(); }
  constexpr int kv_width() const noexcept { return kv_heads * head_dim(); }

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const;

  /// Numbers that enter a matrix product for every token: with D the width, Q = query_width(), G = kv_width() and F = ffn,
  /// `L (2 D Q + 2 D G + 3 D F) + V D`.
  constexpr std::int64_t matmul_parameters() const noexcept {
    const std::int64_t d = width;
    return layers * (2 * d * query_width() + 2 * d * kv_width() + 3 * d * ffn) + vocabulary * d;
  }

  /// Trained numbers of a Llama whose head is not tied: those of the products, the embedding and `2 L + 1` norms.
  constexpr std::int64_t parameters() const noexcept {
    const std::int64_t d = width;
    return matmul_parameters() + vocabulary * d + (2 * static_cast<std::int64_t>(layers) + 1) * d;
  }

  /// Floating-point operations of one training step per token: forward and backward matrix products (2 and 4 per
  /// weight that enters one), and the two attention products over the causal half, 6 L Q (S + 1), which grouping does not
  /// change. Look-ups, norms, rotation, SiLU, softmax and the optimizer are not counted. `sequence` 0 means the context.
  /// Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; the attention term counts only unmasked pairs.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double s = sequence > 0 ? sequence : context;
    return 6.0 * static_cast<double>(matmul_parameters()) +
           6.0 * layers * static_cast<double>(query_width()) * (s + 1.0);
  }

  friend constexpr bool operator==(const llama_config&, const llama_config&) = default;
};

/// `"llama layers=32 heads=32 kv_heads=8 width=4096 ffn=14336 context=8192 vocabulary=128256 theta=500000"`, and scaling
/// and epsilon where they are other ones: what two configurations must share so that the weights of one are those of the
/// other.
HEDDLE_INLINE std::string to_string(const llama_config& c);
namespace detail {
// The same for a family of this shape with another name.
HEDDLE_INLINE std::string llama_text(const char* family, const llama_config& c);
}  // namespace detail

/// For tests: sizes that divide by little, grouped queries, heads of two pairs.
constexpr llama_config llama_tiny() noexcept {
  return {.layers = 2, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 29, .context = 13, .vocabulary = 61};
}

/// Llama 2 of 7 billion parameters. These sizes are the published ones; Llama 3.1's are Llama 3's with a longer context
/// and scaled frequencies.
constexpr llama_config llama2_7b() noexcept {
  return {.layers = 32, .heads = 32, .kv_heads = 32, .width = 4096, .ffn = 11008};
}
/// Llama 2 of 13 billion parameters.
constexpr llama_config llama2_13b() noexcept {
  return {.layers = 40, .heads = 40, .kv_heads = 40, .width = 5120, .ffn = 13824};
}
/// Llama 2 of 70 billion parameters, with grouped queries.
constexpr llama_config llama2_70b() noexcept {
  return {.layers = 80, .heads = 64, .kv_heads = 8, .width = 8192, .ffn = 28672};
}
namespace detail {
// What all sizes of a Llama 3 share, and what those share that go on to 131072 positions.
constexpr llama_config llama3(llama_config of) noexcept {
  of.context = 8192;
  of.vocabulary = 128256;
  of.theta = 500000;
  return of;
}
constexpr llama_config longer_llama3(llama_config of, double factor) noexcept {
  of.context = 131072;
  of.scaling = {.factor = factor, .low = 1, .high = 4, .original = 8192};
  return of;
}
}  // namespace detail
/// Llama 3 of 8 billion parameters.
constexpr llama_config llama3_8b() noexcept {
  return detail::llama3({.layers = 32, .heads = 32, .kv_heads = 8, .width = 4096, .ffn = 14336});
}
/// Llama 3 of 70 billion parameters.
constexpr llama_config llama3_70b() noexcept {
  return detail::llama3({.layers = 80, .heads = 64, .kv_heads = 8, .width = 8192, .ffn = 28672});
}
/// Llama 3.2 of 1 billion parameters, whose head is the token embedding: for `llama<T, How, true>`.
constexpr llama_config llama3_2_1b() noexcept {
  return detail::longer_llama3(detail::llama3({.layers = 16, .heads = 32, .kv_heads = 8, .width = 2048, .ffn = 8192}),
                               32);
}
/// Llama 3.1 of the size of a Llama 3: 131072 positions, with rotary frequencies scaled for them.
constexpr llama_config llama3_1(llama_config of) noexcept {
  return detail::longer_llama3(of, 8);
}

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/llama_config.hpp>
#endif

// heddle/model/qwen3_moe_config.hpp: the numbers that make a Qwen-3 with experts.
#pragma once

#include <heddle/model/mixtral_config.hpp>
#include <heddle/model/qwen_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Qwen-3 with experts: that of a Mixtral, whose query and key heads are normed before they are rotated. `ffn` is of each expert.
/// Source: Yang et al. 2025, arXiv:2505.09388; Hugging Face `Qwen3MoeConfig`.
struct qwen3_moe_config : mixtral_config {
  bool normed = true;  ///< weights of a token's choices are divided by their sum (`norm_topk_prob`)

  constexpr qwen3_moe_config() = default;
  constexpr qwen3_moe_config(const mixtral_config& shape, bool divided = true)
      : mixtral_config(shape), normed(divided) {}

  /// Trained numbers where the head is not tied.
  constexpr std::int64_t parameters() const noexcept {
    return mixtral_config::parameters() + static_cast<std::int64_t>(layers) * 2 * head_dim();
  }
  friend constexpr bool operator==(const qwen3_moe_config&, const qwen3_moe_config&) = default;
  friend constexpr bool operator==(const qwen3_moe_config&, const mixtral_config&) = delete;  // another family
  friend std::string to_string(const qwen3_moe_config& c) {
    return detail::llama_text("qwen3_moe", c) + " experts=" + std::to_string(c.experts) +
           " chosen=" + std::to_string(c.chosen) + (c.normed ? "" : " normed=false");
  }
};

/// Qwen 3 of 30.5 billion parameters, of which 3.3 billion are used for each token.
constexpr qwen3_moe_config qwen3_30b_a3b() noexcept {
  return mixtral_config(detail::qwen3({.layers = 48, .heads = 32, .kv_heads = 4, .width = 2048, .ffn = 768}), 128, 8);
}
/// Qwen 3 of 235 billion parameters, of which 22 billion are used for each token.
constexpr qwen3_moe_config qwen3_235b_a22b() noexcept {
  return mixtral_config(detail::qwen3({.layers = 94, .heads = 64, .kv_heads = 4, .width = 4096, .ffn = 1536}), 128, 8);
}

}  // namespace heddle::inline v0::model

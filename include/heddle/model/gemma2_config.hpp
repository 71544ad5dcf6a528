// heddle/model/gemma2_config.hpp: the numbers that make a Gemma-2.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/gemma3_config.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Gemma-2: that of a Gemma-3 without norms of queries and keys, whose layers all have the rotary positions of `theta`, with caps of
/// scores and of logits. Each second layer sees all tokens.
/// Source: Gemma Team 2024, arXiv:2408.00118; Hugging Face `Gemma2Config`.
struct gemma2_config : gemma3_config {
  double score_cap = 50;  ///< scores s are score_cap tanh(s / score_cap) (`attn_logit_softcapping`)
  double logit_cap = 30;  ///< the same of logits (`final_logit_softcapping`)

  constexpr gemma2_config() : gemma2_config(llama_config{}) {}
  constexpr gemma2_config(const llama_config& shape, int last = 4096, int every = 2, double scalar = 256,
                          double of_scores = 50, double of_logits = 30)
      : gemma3_config(shape, last, every, shape.theta, scalar), score_cap(of_scores), logit_cap(of_logits) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    gemma3_config::validate();
    const auto positive = [](const char* setting, double value) {
      if (!(value > 0 && std::isfinite(value)))
        throw config_error("heddle: gemma2_config." + std::string(setting) + " must be positive and finite, got " +
                           number_text(value));
    };
    positive("score_cap", score_cap);
    positive("logit_cap", logit_cap);
  }
  /// Those of a Llama, without a head of its own, and two more norms in each block.
  constexpr std::int64_t parameters() const noexcept {
    return gemma3_config::parameters() - std::int64_t{layers} * 2 * head_dim();
  }
  friend constexpr bool operator==(const gemma2_config&, const gemma2_config&) = default;
  friend constexpr bool operator==(const gemma2_config&, const gemma3_config&) = delete;  // another family
  friend std::string to_string(const gemma2_config& c) {
    return detail::llama_text("gemma2", c) + " window=" + std::to_string(c.window) +
           " global_every=" + std::to_string(c.global_every) + " query_scalar=" + number_text(c.query_scalar) +
           " caps=" + number_text(c.score_cap) + "," + number_text(c.logit_cap);
  }
};

/// Gemma-2 of 2 billion parameters.
constexpr gemma2_config gemma2_2b() noexcept {
  return {{.layers = 26,
           .heads = 8,
           .kv_heads = 4,
           .width = 2304,
           .ffn = 9216,
           .context = 8192,
           .vocabulary = 256000,
           .epsilon = 1e-6,
           .head_elements = 256}};
}
/// Gemma-2 of 9 billion parameters.
constexpr gemma2_config gemma2_9b() noexcept {
  return {{.layers = 42,
           .heads = 16,
           .kv_heads = 8,
           .width = 3584,
           .ffn = 14336,
           .context = 8192,
           .vocabulary = 256000,
           .epsilon = 1e-6,
           .head_elements = 256}};
}

}  // namespace heddle::inline v0::model

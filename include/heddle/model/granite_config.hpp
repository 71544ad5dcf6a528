// heddle/model/granite_config.hpp: the numbers that make a Granite.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/llama_config.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Granite: that of a Llama, with four multipliers.
/// Source: Granite Team, IBM 2024, "Granite 3.0 Language Models"; Hugging Face `GraniteConfig`.
struct granite_config : llama_config {
  double embedding_multiplier = 1;  ///< of the token embedding
  double score_multiplier = 1;      ///< of scores, in place of 1 / sqrt(head_size) (`attention_multiplier`)
  double residual_multiplier = 1;   ///< of what each half of a block adds to the stream
  double logits_divisor = 1;        ///< logits are divided by it (`logits_scaling`)

  constexpr granite_config() = default;
  constexpr granite_config(const llama_config& shape, double embeddings = 1, double scores = 1, double added = 1,
                           double logits = 1)
      : llama_config(shape),
        embedding_multiplier(embeddings),
        score_multiplier(scores),
        residual_multiplier(added),
        logits_divisor(logits) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    const auto positive = [](const char* called, double value) {
      if (!(value > 0 && std::isfinite(value)))
        throw config_error("heddle: granite_config." + std::string(called) + " must be positive and finite, got " +
                           number_text(value));
    };
    positive("embedding_multiplier", embedding_multiplier);
    positive("score_multiplier", score_multiplier);
    positive("residual_multiplier", residual_multiplier);
    positive("logits_divisor", logits_divisor);
  }
  friend constexpr bool operator==(const granite_config&, const granite_config&) = default;
  friend constexpr bool operator==(const granite_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const granite_config& c) {
    return detail::llama_text("granite", c) + " multipliers=" + number_text(c.embedding_multiplier) + "," +
           number_text(c.score_multiplier) + "," + number_text(c.residual_multiplier) + "," +
           number_text(c.logits_divisor);
  }
};

/// Granite 3.1 of 2 billion parameters: its head is the token embedding.
constexpr granite_config granite3_2b() noexcept {
  return {{.layers = 40,
           .heads = 32,
           .kv_heads = 8,
           .width = 2048,
           .ffn = 8192,
           .context = 131072,
           .vocabulary = 49155,
           .theta = 5000000},
          12,
          0.015625,
          0.22,
          8};
}
/// Granite 3.1 of 8 billion parameters: its head is the token embedding.
constexpr granite_config granite3_8b() noexcept {
  return {{.layers = 40,
           .heads = 32,
           .kv_heads = 8,
           .width = 4096,
           .ffn = 12800,
           .context = 131072,
           .vocabulary = 49155,
           .theta = 10000000},
          12,
          0.0078125,
          0.22,
          16};
}

}  // namespace heddle::inline v0::model

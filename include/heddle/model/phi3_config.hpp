// heddle/model/phi3_config.hpp: the numbers that make a Phi-3 or a Phi-4.
#pragma once

#include <heddle/compute/long_rotary.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/llama_config.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Phi-3 or Phi-4: that of a Llama, with a window or none, of whose heads the first `rotating` elements rotate.
/// Source: Abdin et al. 2024, arXiv:2404.14219 and arXiv:2412.08905; Microsoft 2025, arXiv:2503.01743; Hugging Face `Phi3Config`.
struct phi3_config : llama_config {
  int window = 0;                           ///< tokens that each sees, itself among them; 0: all up to itself
  int rotating = 0;                         ///< the first elements of a head, which alone rotate; 0: all do
  compute::long_rotary_scaling longrope{};  ///< `context` says which of its factors are taken

  constexpr phi3_config() = default;
  constexpr phi3_config(const llama_config& shape, int last = 0, int turned = 0)
      : llama_config(shape), window(last), rotating(turned) {}

  constexpr int rotary_pairs() const noexcept { return (rotating > 0 ? rotating : head_dim()) / 2; }
  /// Tokens that a token sees at most.
  constexpr int last_tokens() const noexcept { return window > 0 ? window : context; }

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    const auto must = [](bool holds, const char* setting, const std::string& expected, double value) {
      if (!holds)
        throw config_error("heddle: phi3_config." + std::string(setting) + " must be " + expected + ", got " +
                           number_text(value));
    };
    must(window >= 0 && window <= most_tokens, "window", "0 to " + std::to_string(most_tokens), window);
    must(rotating >= 0 && rotating <= head_dim() && rotating % 2 == 0, "rotating",
         "an even number of 0 to " + std::to_string(head_dim()), rotating);
    if (longrope.count == 0) return;
    must(longrope.count == rotary_pairs() && longrope.count <= static_cast<std::int64_t>(longrope.most),
         "longrope.count",
         std::to_string(rotary_pairs()) + ", a factor for each pair that rotates, and at most " +
             std::to_string(longrope.most),
         static_cast<double>(longrope.count));
    must(longrope.original > 0 && std::isfinite(longrope.original), "longrope.original", "positive and finite",
         longrope.original);
    must(longrope.table_factor > 0 && std::isfinite(longrope.table_factor), "longrope.table_factor",
         "positive and finite", longrope.table_factor);
    must(scaling.factor == 1 && yarn.factor == 1, "scaling.factor", "1 beside longrope, and yarn.factor, too",
         scaling.factor);
    for (const auto* factors : {&longrope.brief, &longrope.extended})
      for (std::int64_t i = 0; i < longrope.count; ++i)
        if (const double f = (*factors)[static_cast<std::size_t>(i)]; !(f > 0 && std::isfinite(f)))
          must(false, "longrope", "positive and finite factors", f);
  }
  /// As of a Llama, with attention to the tokens of the window alone.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double n = sequence > 0 ? sequence : context, w = last_tokens() < n ? last_tokens() : n;
    return 6.0 * static_cast<double>(matmul_parameters()) +
           6.0 * layers * static_cast<double>(query_width()) * w * (2 * n - w + 1) / n;
  }
  friend constexpr bool operator==(const phi3_config&, const phi3_config&) = default;
  friend constexpr bool operator==(const phi3_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const phi3_config& c) {
    std::string text = detail::llama_text("phi3", c) + " window=" + std::to_string(c.window) +
                       " rotating=" + std::to_string(2 * c.rotary_pairs());
    if (c.longrope.count > 0)
      text += " longrope=" + number_text(c.longrope.original) + "," + number_text(c.longrope.table_factor);
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.longrope.count); ++i)
      text += "," + number_text(c.longrope.brief[i]) + "/" + number_text(c.longrope.extended[i]);
    return text;
  }
};

/// Phi-3-mini of 4096 positions.
constexpr phi3_config phi3_mini() noexcept {
  return {{.layers = 32, .heads = 32, .kv_heads = 32, .width = 3072, .ffn = 8192, .context = 4096, .vocabulary = 32064},
          2047};
}
/// Phi-4 of 14 billion parameters.
constexpr phi3_config phi4() noexcept {
  return llama_config{.layers = 40,
                      .heads = 40,
                      .kv_heads = 10,
                      .width = 5120,
                      .ffn = 17920,
                      .context = 16384,
                      .vocabulary = 100352,
                      .theta = 250000};
}
/// Phi-4-mini, without its factors of LongRoPE, which are 48 pairs of numbers; its head is the token embedding.
constexpr phi3_config phi4_mini() noexcept {
  return {
      {.layers = 32, .heads = 24, .kv_heads = 8, .width = 3072, .ffn = 8192, .context = 131072, .vocabulary = 200064},
      0,
      96};
}

}  // namespace heddle::inline v0::model

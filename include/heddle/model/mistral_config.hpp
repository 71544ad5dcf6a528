// heddle/model/mistral_config.hpp: the numbers that make a Mistral.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/llama_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Mistral: that of a Llama, each token of which sees the last `window` tokens, itself among them.
/// Source: Jiang et al. 2023, arXiv:2310.06825; Hugging Face `MistralConfig`.
struct mistral_config : llama_config {
  int window = 4096;

  constexpr mistral_config() = default;
  constexpr mistral_config(const llama_config& shape, int last = 4096) : llama_config(shape), window(last) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    if (window < 1 || window > most_tokens)
      throw config_error("heddle: mistral_config.window must be 1 to " + std::to_string(most_tokens) + ", got " +
                         std::to_string(window));
  }
  /// As of a Llama, with attention to the tokens of the window alone.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double n = sequence > 0 ? sequence : context, w = window < n ? window : n;
    return 6.0 * static_cast<double>(matmul_parameters()) +
           6.0 * layers * static_cast<double>(query_width()) * w * (2 * n - w + 1) / n;
  }
  friend constexpr bool operator==(const mistral_config&, const mistral_config&) = default;
  friend constexpr bool operator==(const mistral_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const mistral_config& c) {
    return detail::llama_text("mistral", c) + " window=" + std::to_string(c.window);
  }
};

/// Mistral 7B of version 0.1; later versions have no window and are Llamas.
constexpr mistral_config mistral_7b() noexcept {
  return llama_config{
      .layers = 32, .heads = 32, .kv_heads = 8, .width = 4096, .ffn = 14336, .context = 32768, .vocabulary = 32000};
}

/// For tests: sizes that divide by little, and a window shorter than the context.
constexpr mistral_config mistral_tiny() noexcept {
  return {llama_tiny(), 5};
}

}  // namespace heddle::inline v0::model

// heddle/model/smollm3_config.hpp: the numbers that make a SmolLM3.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/llama_config.hpp>

#include <string>

namespace heddle::inline v0::model {

/// The shape of a SmolLM3: that of a Llama, in which each `still_every`-th layer has no rotary positions.
/// Source: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner"; Yang et al. 2025, arXiv:2501.18795; Hugging Face `SmolLM3Config`.
struct smollm3_config : llama_config {
  int still_every = 4;  ///< layers `still_every - 1`, `2 still_every - 1`, ... do not rotate queries and keys

  constexpr smollm3_config() = default;
  constexpr smollm3_config(const llama_config& shape, int every = 4) : llama_config(shape), still_every(every) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    if (still_every < 1)
      throw config_error("heddle: smollm3_config.still_every must be at least 1, got " + std::to_string(still_every));
  }
  friend constexpr bool operator==(const smollm3_config&, const smollm3_config&) = default;
  friend constexpr bool operator==(const smollm3_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const smollm3_config& c) {
    return detail::llama_text("smollm3", c) + " still_every=" + std::to_string(c.still_every);
  }
};

/// SmolLM3 of 3 billion parameters: its head is the token embedding.
constexpr smollm3_config smollm3_3b() noexcept {
  return llama_config{.layers = 36,
                      .heads = 16,
                      .kv_heads = 4,
                      .width = 2048,
                      .ffn = 11008,
                      .context = 65536,
                      .vocabulary = 128256,
                      .theta = 5000000,
                      .epsilon = 1e-6};
}

}  // namespace heddle::inline v0::model

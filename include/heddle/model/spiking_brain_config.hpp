// heddle/model/spiking_brain_config.hpp: the numbers that make a SpikingBrain-7B.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/config_checks.hpp>
#include <heddle/model/qwen_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a SpikingBrain-7B: that of a Qwen-2 whose even layers have linear attention with gates of `gate_rank` numbers, and whose odd ones see the last `window` tokens.
/// Source: arXiv:2509.05276, section 3; `GLAswaConfig`.
struct spiking_brain_config : llama_config {
  int window = 4096;
  int gate_rank = 16;
  double gate_normalizer = 16;

  constexpr spiking_brain_config() = default;
  constexpr spiking_brain_config(const llama_config& shape, int last = 4096, int rank = 16)
      : llama_config(shape), window(last), gate_rank(rank) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    const detail::config_checks check{"spiking_brain_config"};
    check.in_range(1, most_tokens, {{"window", window}});
    check.in_range(1, most_width, {{"gate_rank", gate_rank}});
    check.in_range(1, 256, {{"head_dim", head_dim()}});
    if (!(gate_normalizer > 0 && gate_normalizer <= 1e6))
      throw config_error("heddle: spiking_brain_config.gate_normalizer must be a number > 0, got " +
                         number_text(gate_normalizer));
  }
  friend constexpr bool operator==(const spiking_brain_config&, const spiking_brain_config&) = default;
  friend constexpr bool operator==(const spiking_brain_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const spiking_brain_config& c) {
    return detail::llama_text("spiking_brain", c) + " window=" + std::to_string(c.window) +
           " gate_rank=" + std::to_string(c.gate_rank) +
           (c.gate_normalizer == spiking_brain_config{}.gate_normalizer
                ? std::string()
                : " gate_normalizer=" + number_text(c.gate_normalizer));
  }
};

/// SpikingBrain-7B.
constexpr spiking_brain_config spiking_brain_7b() noexcept {
  return {llama_config{.layers = 28,
                       .heads = 28,
                       .kv_heads = 4,
                       .width = 3584,
                       .ffn = 18944,
                       .context = 131072,
                       .vocabulary = 152064,
                       .theta = 1000000,
                       .epsilon = 1e-6}};
}

/// For tests: sizes that divide by little, three layers, a window shorter than the context.
constexpr spiking_brain_config spiking_brain_tiny() noexcept {
  llama_config shape = llama_tiny();
  shape.layers = 3;
  return {shape, 5, 3};
}

}  // namespace heddle::inline v0::model

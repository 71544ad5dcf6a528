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

  /// Layers with linear attention: the even ones.
  constexpr int linear_layers() const noexcept { return (layers + 1) / 2; }
  /// As of a Llama, with the two products that gates are made by.
  constexpr std::int64_t matmul_parameters() const noexcept {
    return llama_config::matmul_parameters() +
           static_cast<std::int64_t>(linear_layers()) * gate_rank * (std::int64_t{width} + kv_width());
  }
  /// Trained numbers: those of a Qwen-2, and of gates their products, their bias and the norm of a head.
  constexpr std::int64_t parameters() const noexcept {
    return qwen2_config(*this).parameters() + matmul_parameters() - llama_config::matmul_parameters() +
           static_cast<std::int64_t>(linear_layers()) * (kv_width() + head_dim());
  }
  /// As of a Llama, with attention to the tokens of the window in odd layers; a state of linear attention takes a key and a value in, and is asked by each query of its group.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double n = sequence > 0 ? sequence : context, w = window < n ? window : n, e = head_dim();
    const double windowed = static_cast<double>(query_width()) * w * (2 * n - w + 1) / n;
    const double linear = e * e * (1.5 * kv_heads + heads);
    return 6.0 * static_cast<double>(matmul_parameters()) + 6.0 * (layers - linear_layers()) * windowed +
           6.0 * linear_layers() * linear;
  }

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

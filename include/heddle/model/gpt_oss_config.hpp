// heddle/model/gpt_oss_config.hpp: the numbers that make a GPT-OSS.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/config_checks.hpp>
#include <heddle/model/mixtral_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a GPT-OSS: that of a Mixtral whose products of attention, routers and experts have biases, and whose heads have sinks. Layers
/// see the last `window` tokens, but for each `global_every`-th, which sees all. `ffn` is of each expert.
/// Source: OpenAI 2025, arXiv:2508.10925; Hugging Face `GptOssConfig`.
struct gpt_oss_config : mixtral_config {
  int window = 128;      ///< tokens that each sees in local layers, itself among them
  int global_every = 2;  ///< layers `global_every - 1`, `2 global_every - 1`, ... see all tokens

  constexpr gpt_oss_config() = default;
  constexpr gpt_oss_config(const mixtral_config& shape, int last = 128, int every = 2)
      : mixtral_config(shape), window(last), global_every(every) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    mixtral_config::validate();
    const detail::config_checks check{"gpt_oss_config"};
    check.in_range(1, most_tokens, {{"window", window}});
    check.in_range(1, most_layers + 1, {{"global_every", global_every}});
  }
  constexpr int global_layers() const noexcept { return layers / global_every; }
  /// Trained numbers where the head is not tied: those of a Mixtral, biases and a sink for each head.
  constexpr std::int64_t parameters() const noexcept {
    return mixtral_config::parameters() +
           std::int64_t{layers} * (query_width() + 2 * kv_width() + width + heads +
                                   std::int64_t{experts} * (2 * std::int64_t{ffn} + width + 1));
  }
  /// As of a Mixtral, with attention to the tokens of the window alone in local layers.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double n = sequence > 0 ? sequence : context, w = window < n ? window : n;
    return 6.0 * static_cast<double>(matmul_parameters()) +
           6.0 * static_cast<double>(query_width()) *
               (global_layers() * (n + 1) + (layers - global_layers()) * w * (2 * n - w + 1) / n);
  }
  friend constexpr bool operator==(const gpt_oss_config&, const gpt_oss_config&) = default;
  friend constexpr bool operator==(const gpt_oss_config&, const mixtral_config&) = delete;  // another family
  friend std::string to_string(const gpt_oss_config& c) {
    return detail::llama_text("gpt_oss", c) + " experts=" + std::to_string(c.experts) +
           " chosen=" + std::to_string(c.chosen) + " window=" + std::to_string(c.window) +
           " global_every=" + std::to_string(c.global_every);
  }
};

namespace detail {
// What both sizes of a GPT-OSS share.
constexpr gpt_oss_config gpt_oss(int layers, int experts) noexcept {
  return mixtral_config({.layers = layers,
                         .heads = 64,
                         .kv_heads = 8,
                         .width = 2880,
                         .ffn = 2880,
                         .context = 131072,
                         .vocabulary = 201088,
                         .theta = 150000,
                         .head_elements = 64,
                         .yarn = {.factor = 32, .original = 4096, .whole = false}},
                        experts, 4);
}
}  // namespace detail
/// GPT-OSS of 20.9 billion parameters, of which 3.6 billion are used for each token.
constexpr gpt_oss_config gpt_oss_20b() noexcept {
  return detail::gpt_oss(24, 32);
}
/// GPT-OSS of 116.8 billion parameters, of which 5.1 billion are used for each token.
constexpr gpt_oss_config gpt_oss_120b() noexcept {
  return detail::gpt_oss(36, 128);
}

}  // namespace heddle::inline v0::model

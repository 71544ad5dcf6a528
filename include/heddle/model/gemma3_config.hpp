// heddle/model/gemma3_config.hpp: the numbers that make a Gemma-3.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/llama_config.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

namespace heddle::inline v0::model {

namespace detail {
// The square root of a number that is not negative, as a constant, too.
constexpr double root_of(double x) noexcept {
  if (!std::is_constant_evaluated()) return std::sqrt(x);
  double root = x > 1 ? x : 1;
  for (int i = 0; i < 100 && x > 0; ++i) root = 0.5 * (root + x / root);
  return root;
}
}  // namespace detail

/// The shape of a Gemma-3 of texts: that of a Llama with GELU, norms before and behind the halves of a block and of queries and keys. Layers see
/// the last `window` tokens, but for each `global_every`-th, which sees all. `theta` and scaling of frequencies are of these.
/// Source: Gemma Team 2025, arXiv:2503.19786; Hugging Face `Gemma3TextConfig`.
struct gemma3_config : llama_config {
  int window = 4096;           ///< tokens that each sees in local layers, itself among them
  int global_every = 6;        ///< layers `global_every - 1`, `2 global_every - 1`, ... see all tokens
  double local_theta = 10000;  ///< base of the rotary frequencies of local layers, which are not scaled
  double query_scalar = 256;   ///< scores are divided by its root (`query_pre_attn_scalar`)

  constexpr gemma3_config() = default;
  constexpr gemma3_config(const llama_config& shape, int last = 4096, int every = 6, double local = 10000,
                          double scalar = 256)
      : llama_config(shape), window(last), global_every(every), local_theta(local), query_scalar(scalar) {}

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    llama_config::validate();
    const auto must = [](bool holds, const char* setting, const std::string& expected, double value) {
      if (!holds)
        throw config_error("heddle: gemma3_config." + std::string(setting) + " must be " + expected + ", got " +
                           number_text(value));
    };
    must(window >= 1 && window <= most_tokens, "window", "1 to " + std::to_string(most_tokens), window);
    must(global_every >= 1, "global_every", "at least 1", global_every);
    must(local_theta > 0 && std::isfinite(local_theta), "local_theta", "positive and finite", local_theta);
    must(query_scalar > 0 && std::isfinite(query_scalar), "query_scalar", "positive and finite", query_scalar);
  }
  /// What scores are multiplied by, and the token embedding.
  constexpr double score_scale() const noexcept { return 1 / detail::root_of(query_scalar); }
  constexpr double embedding_multiplier() const noexcept { return detail::root_of(width); }
  constexpr int global_layers() const noexcept { return layers / global_every; }
  /// Those of a Llama, without a head of its own, and two more norms of the stream and two of heads in each block.
  constexpr std::int64_t parameters() const noexcept {
    return llama_config::parameters() - std::int64_t{vocabulary} * width +
           layers * 2 * (std::int64_t{width} + head_dim());
  }
  /// As of a Llama, with attention to the tokens of the window alone in local layers.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double n = sequence > 0 ? sequence : context, w = window < n ? window : n;
    return 6.0 * static_cast<double>(matmul_parameters()) +
           6.0 * static_cast<double>(query_width()) *
               (global_layers() * (n + 1) + (layers - global_layers()) * w * (2 * n - w + 1) / n);
  }
  friend constexpr bool operator==(const gemma3_config&, const gemma3_config&) = default;
  friend constexpr bool operator==(const gemma3_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const gemma3_config& c) {
    return detail::llama_text("gemma3", c) + " window=" + std::to_string(c.window) +
           " global_every=" + std::to_string(c.global_every) + " local_theta=" + number_text(c.local_theta) +
           " query_scalar=" + number_text(c.query_scalar);
  }
};

/// Gemma-3 of 270 million parameters.
constexpr gemma3_config gemma3_270m() noexcept {
  return {{.layers = 18,
           .heads = 4,
           .kv_heads = 1,
           .width = 640,
           .ffn = 2048,
           .context = 32768,
           .vocabulary = 262144,
           .theta = 1000000,
           .epsilon = 1e-6,
           .head_elements = 256},
          512};
}
/// Gemma-3 of 1 billion parameters.
constexpr gemma3_config gemma3_1b() noexcept {
  return {{.layers = 26,
           .heads = 4,
           .kv_heads = 1,
           .width = 1152,
           .ffn = 6912,
           .context = 32768,
           .vocabulary = 262144,
           .theta = 1000000,
           .epsilon = 1e-6,
           .head_elements = 256},
          512};
}

}  // namespace heddle::inline v0::model

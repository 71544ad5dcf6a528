// heddle/model/qwen_config.hpp: the numbers that make a Qwen-2 or a Qwen-3.
#pragma once

#include <heddle/model/llama_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a Qwen-2 (or 2.5): that of a Llama, whose products of queries, keys and values have biases.
/// Source: Yang et al. 2024, arXiv:2407.10671; Hugging Face `Qwen2Config`.
struct qwen2_config : llama_config {
  constexpr qwen2_config() = default;
  constexpr qwen2_config(const llama_config& shape) : llama_config(shape) {}
  /// Trained numbers where the head is not tied.
  constexpr std::int64_t parameters() const noexcept {
    return llama_config::parameters() + static_cast<std::int64_t>(layers) * (query_width() + 2 * kv_width());
  }
  friend constexpr bool operator==(const qwen2_config&, const qwen2_config&) = default;
  friend constexpr bool operator==(const qwen2_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const qwen2_config& c) { return detail::llama_text("qwen2", c); }
};

/// The shape of a Qwen-3: that of a Llama, whose query and key heads are normed before they are rotated.
/// Source: Yang et al. 2025, arXiv:2505.09388; Hugging Face `Qwen3Config`.
struct qwen3_config : llama_config {
  constexpr qwen3_config() = default;
  constexpr qwen3_config(const llama_config& shape) : llama_config(shape) {}
  /// Trained numbers where the head is not tied.
  constexpr std::int64_t parameters() const noexcept {
    return llama_config::parameters() + static_cast<std::int64_t>(layers) * 2 * head_dim();
  }
  friend constexpr bool operator==(const qwen3_config&, const qwen3_config&) = default;
  friend constexpr bool operator==(const qwen3_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const qwen3_config& c) { return detail::llama_text("qwen3", c); }
};

namespace detail {
// What all sizes of a Qwen-2 share, and of a Qwen-3.
constexpr llama_config qwen2(llama_config of) noexcept {
  of.context = 32768;
  of.theta = 1000000;
  of.epsilon = 1e-6;
  return of;
}
constexpr llama_config qwen3(llama_config of) noexcept {
  of = qwen2(of);
  of.context = 40960;
  of.vocabulary = 151936;
  of.head_elements = 128;
  return of;
}
}  // namespace detail

/// Qwen 2 (and 2.5) of 0.5 billion parameters: its head is the token embedding.
constexpr qwen2_config qwen2_0_5b() noexcept {
  return detail::qwen2({.layers = 24, .heads = 14, .kv_heads = 2, .width = 896, .ffn = 4864, .vocabulary = 151936});
}
/// Qwen 2 of 7 billion parameters, with a head of its own.
constexpr qwen2_config qwen2_7b() noexcept {
  return detail::qwen2({.layers = 28, .heads = 28, .kv_heads = 4, .width = 3584, .ffn = 18944, .vocabulary = 152064});
}
/// Qwen 3 of 0.6 billion parameters: its head is the token embedding.
constexpr qwen3_config qwen3_0_6b() noexcept {
  return detail::qwen3({.layers = 28, .heads = 16, .kv_heads = 8, .width = 1024, .ffn = 3072});
}
/// Qwen 3 of 8 billion parameters, with a head of its own.
constexpr qwen3_config qwen3_8b() noexcept {
  return detail::qwen3({.layers = 36, .heads = 32, .kv_heads = 8, .width = 4096, .ffn = 12288});
}

}  // namespace heddle::inline v0::model

// heddle/model/olmo2_config.hpp: the numbers that make an OLMo-2.
#pragma once

#include <heddle/model/llama_config.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of an OLMo-2: that of a Llama, with norms behind the halves of a block, and of queries and keys.
/// Source: OLMo Team 2024, arXiv:2501.00656; Hugging Face `Olmo2Config`.
struct olmo2_config : llama_config {
  constexpr olmo2_config() = default;
  constexpr olmo2_config(const llama_config& shape) : llama_config(shape) {}

  /// Those of a Llama, and two norms of queries and keys in each block.
  constexpr std::int64_t parameters() const noexcept {
    return llama_config::parameters() + layers * (std::int64_t{query_width()} + kv_width());
  }
  friend constexpr bool operator==(const olmo2_config&, const olmo2_config&) = default;
  friend constexpr bool operator==(const olmo2_config&, const llama_config&) = delete;  // another family
  friend std::string to_string(const olmo2_config& c) { return detail::llama_text("olmo2", c); }
};

namespace detail {
constexpr llama_config olmo2(llama_config of) noexcept {
  of.context = 4096;
  of.vocabulary = 100352;
  of.theta = 500000;
  of.epsilon = 1e-6;
  return of;
}
}  // namespace detail
/// OLMo-2 of 1 billion parameters.
constexpr olmo2_config olmo2_1b() noexcept {
  return detail::olmo2({.layers = 16, .heads = 16, .kv_heads = 16, .width = 2048, .ffn = 8192});
}
/// OLMo-2 of 7 billion parameters.
constexpr olmo2_config olmo2_7b() noexcept {
  return detail::olmo2({.layers = 32, .heads = 32, .kv_heads = 32, .width = 4096, .ffn = 11008});
}
/// OLMo-2 of 13 billion parameters.
constexpr olmo2_config olmo2_13b() noexcept {
  return detail::olmo2({.layers = 40, .heads = 40, .kv_heads = 40, .width = 5120, .ffn = 13824});
}

}  // namespace heddle::inline v0::model

// tests/model/gpt2_activations.hpp: what a block of GPT-2 keeps, counted by hand: an oracle for sizes that follow from
// descriptions.
#pragma once

#include <heddle/model/recompute_plan.hpp>

#include <cstdint>

namespace model_test {

struct block_extents {
  std::int64_t width = 0;
  std::int64_t heads = 0;  ///< of this rank, as `hidden`
  std::int64_t head_dim = 0;
  std::int64_t hidden = 0;
};

/// Elements per token that a block keeps from forward to backward when `again` is computed again: its input, and the rest.
constexpr std::int64_t kept_elements(const block_extents& e, heddle::model::activation_set again) noexcept {
  using heddle::model::activation;
  const auto kept = [&](activation a, std::int64_t elements) { return again.has(a) ? 0 : elements; };
  return e.width + kept(activation::ln_1_out, e.width + 2) + kept(activation::attn_qkv, 3 * e.heads * e.head_dim) +
         kept(activation::attn_out, e.heads * (e.head_dim + 1)) + kept(activation::mid, e.width) +
         kept(activation::ln_2_out, e.width + 2) + kept(activation::mlp_hidden, e.hidden) +
         kept(activation::mlp_activated, e.hidden);
}

/// Elements per token of what is computed again in backward_input and needed until backward_weight.
constexpr std::int64_t recomputed_for_weights(const block_extents& e, heddle::model::activation_set again) noexcept {
  using heddle::model::activation;
  const auto waits = [&](activation a, std::int64_t elements) { return again.has(a) ? elements : 0; };
  return waits(activation::ln_1_out, e.width + 2) + waits(activation::attn_out, e.heads * e.head_dim) +
         waits(activation::mid, e.width) + waits(activation::ln_2_out, e.width + 2) +
         waits(activation::mlp_activated, e.hidden);
}

}  // namespace model_test

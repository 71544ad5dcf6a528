// heddle/model/qwen3_moe.hpp: Qwen-3 with experts, described and as a model.
#pragma once

#include <heddle/model/layers/experts.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen3_moe_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// A Qwen-3 whose MLPs are mixtures of experts, with Hugging Face's names. A tensor of all experts of a block is in files one for each expert:
/// `experts.*.gate_proj.weight`.
/// Source: Yang et al. 2025, arXiv:2505.09388; Hugging Face `Qwen3MoeForCausalLM`.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_qwen3_moe(const qwen3_moe_config& c, Adapter adapt = {}) {
  experts<softmax_choice> mixture("mlp", "gate", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
  mixture.router.normed = c.normed;
  mixture.balance = c.balance;
  mixture.gate_name = "experts.*.gate_proj.weight";
  mixture.down_name = "experts.*.down_proj.weight";
  mixture.up_name = "experts.*.up_proj.weight";
  return describe_llama_with<grouped_attention<false, false, true>, Tied>(c, mixture, adapt);
}
}  // namespace layers

using layers::describe_qwen3_moe;
static_assert(layers::count_parameters(describe_qwen3_moe(qwen3_30b_a3b())) == 30532122624);
static_assert(layers::count_parameters(describe_qwen3_moe(qwen3_235b_a22b())) == 235093634560);
static_assert(qwen3_30b_a3b().parameters() == 30532122624 && qwen3_235b_a22b().parameters() == 235093634560);

/// Qwen-3 with experts, with elements of type T. `How`: its sharding, as of `mixtral`. `Tied`: the token embedding is the head.
template <class T, class How = megatron_with_experts<>, bool Tied = false>
struct qwen3_moe : described<qwen3_moe<T, How, Tied>, T, batch<T>, qwen3_moe_config, How> {
  /// `adapt`: adapters around the products of attention, not in experts and routers, for `with_lora`; or nothing.
  static constexpr auto describe(const qwen3_moe_config& c, auto... adapt) {
    return describe_qwen3_moe<Tied>(c, adapt...);
  }
};
/// Qwen-3 with experts and the token embedding as head.
template <class T, class How = megatron_with_experts<>>
using tied_qwen3_moe = qwen3_moe<T, How, true>;

}  // namespace heddle::inline v0::model

// heddle/model/mixtral.hpp: Mixtral as a description of layers, and as a model to train.
#pragma once

#include <heddle/model/layers/experts.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Mixtral with Hugging Face's names: a Llama whose MLPs are mixtures of experts. A tensor of all experts of a block is in files one for
/// each expert: `experts.*.w1.weight`.
/// Source: Jiang et al. 2024, arXiv:2401.04088; Hugging Face `MixtralForCausalLM`.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_mixtral(const mixtral_config& c, Adapter adapt = {}) {
  experts<> mixture("block_sparse_moe", "gate", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
  mixture.balance = c.balance;
  return describe_llama_with<grouped_attention<>, Tied>(c, mixture, adapt);
}
}  // namespace layers

using layers::describe_mixtral;
static_assert(layers::count_parameters(describe_mixtral(mixtral_8x7b())) == 46702792704);
static_assert(mixtral_8x7b().parameters() == 46702792704 && mixtral_8x7b().matmul_parameters() == 12748587008);

/// Mixtral with elements of type T. `How`: its sharding, by default heads, hidden units and vocabulary over tp, samples over dp and experts
/// over ep, whose ranks see the same samples; with `expert_parallel<>` they see others. `Tied`: the token embedding is the head.
template <class T, class How = megatron_with_experts<>, bool Tied = false>
struct mixtral : described<mixtral<T, How, Tied>, T, batch<T>, mixtral_config, How> {
  /// `adapt`: adapters around the products of attention, not in experts and routers, for `with_lora`; or nothing.
  static constexpr auto describe(const mixtral_config& c, auto... adapt) { return describe_mixtral<Tied>(c, adapt...); }
};
/// Mixtral with the token embedding as head.
template <class T, class How = megatron_with_experts<>>
using tied_mixtral = mixtral<T, How, true>;

}  // namespace heddle::inline v0::model

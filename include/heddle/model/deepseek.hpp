// heddle/model/deepseek.hpp: DeepSeek-V3 and -V2 as layers, and as a model to train.
#pragma once

#include <heddle/model/deepseek_attention.hpp>
#include <heddle/model/deepseek_config.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/model/layers/sum_of_layers.hpp>
#include <heddle/model/layers/trained.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

namespace layers {
/// DeepSeek-V3 with Hugging Face's names: latent attention, routed experts chosen by biased sigmoid scores in groups, and a shared one beside
/// them; in the leading blocks an MLP. Where the configuration says `softmax`, DeepSeek-V2: scores are a softmax without a bias. The selection
/// biases of routers are parameters that no gradient changes. `LatentQueries`: queries are made of a latent
/// vector (`q_a_proj`, `q_b_proj`), not of the stream (`q_proj`).
/// Errors: `config_error` if `query_latent` is 0 with latent queries, or positive without.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437; arXiv:2405.04434; Hugging Face `DeepseekV3ForCausalLM`, `DeepseekV2ForCausalLM`.
template <bool LatentQueries = true, class Adapter = no_adapter>
constexpr auto describe_deepseek(const deepseek_config& c, Adapter adapt = {}) {
  using to_hidden = linear<dims<dim::width>, dims<dim::ffn>, false, storage::out_in>;
  using from_hidden = linear<dims<dim::ffn>, dims<dim::width>, false, storage::out_in>;
  const std::int64_t d = c.width, f = static_cast<std::int64_t>(c.shared) * c.ffn;
  const double deviation = c.initial_deviation;
  const auto norm = [&](const char* name, const char* role) {
    return rms_norm<>(name, d, c.epsilon, activation_named(role));
  };
  using mixture = experts<grouped_scores<sigmoid_or_softmax>>;
  mixture routed("", "gate", c.experts, c.chosen, d, c.ffn, deviation);
  routed.router.rule = c.choice();
  routed.router.softmax = c.softmax;
  routed.router.biased = !c.softmax;
  routed.gate_name = "experts.*.gate_proj.weight";
  routed.down_name = "experts.*.down_proj.weight";
  routed.up_name = "experts.*.up_proj.weight";
  const auto plain = [&](const char* name, std::int64_t units) {
    return gated<compute::silu>(name, to_hidden("gate_proj", {d}, {units}, deviation),
                                to_hidden("up_proj", {d}, {units}, deviation),
                                from_hidden("down_proj", {units}, {d}, deviation));
  };
  const auto shared = plain("shared_experts", f);
  const sum_of_layers<mixture, std::remove_const_t<decltype(shared)>> mlp{"mlp", routed, shared, d};
  const auto block = [&](const auto& units) {
    return sequence(d, residual(norm("input_layernorm", "ln_1.out"), deepseek_attention<LatentQueries>(c, adapt)),
                    residual(norm("post_attention_layernorm", "ln_2.out"), units));
  };
  return train_only<all_but_selection_bias>(language_model{
      embedding<false>{"model", "embed_tokens.weight", "", c.vocabulary, d, c.context, deviation}, "model.layers.",
      c.layers, block(mlp),
      language_head<rms_norm<>, false>(norm("model.norm", "ln_f.out"), c.vocabulary, "lm_head.weight", deviation),
      block(plain("mlp", c.dense_ffn)), other_layers{c.dense}});
}
}  // namespace layers

using layers::describe_deepseek;
static_assert(layers::count_parameters(describe_deepseek(deepseek_config{})) == deepseek_config{}.parameters());

/// DeepSeek-V3, or V2 as its configuration says, with elements of type T. `How`: its sharding, by default heads, hidden units and vocabulary over tp, samples over dp and
/// experts over ep, whose ranks see the same samples; with `expert_parallel<>` they see others. `LatentQueries`: as its configuration has
/// `query_latent` above 0.
template <class T, class How = megatron_with_experts<>, bool LatentQueries = true>
struct deepseek : described<deepseek<T, How, LatentQueries>, T, batch<T>, deepseek_config, How> {
  /// `adapt`: adapters around the products of attention, not in experts and routers, for `with_lora`; or nothing.
  static constexpr auto describe(const deepseek_config& c, auto... adapt) {
    return describe_deepseek<LatentQueries>(c, adapt...);
  }
};
/// DeepSeek-V3 whose queries are made of the stream: `"q_lora_rank": null`.
template <class T, class How = megatron_with_experts<>>
using plain_query_deepseek = deepseek<T, How, false>;

}  // namespace heddle::inline v0::model

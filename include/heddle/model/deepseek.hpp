// heddle/model/deepseek.hpp: DeepSeek-V3 as a description of layers, and as a model a trainer can be given.
#pragma once

#include <heddle/model/deepseek_config.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/model/layers/latent_attention.hpp>
#include <heddle/model/layers/sum_of_layers.hpp>
#include <heddle/model/layers/trained.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

namespace layers {
/// DeepSeek-V3 with Hugging Face's names: latent attention, routed experts chosen by biased sigmoid scores in groups, and a shared one beside
/// them. All blocks are alike. The selection biases of routers are parameters that no gradient changes.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437; Hugging Face `DeepseekV3ForCausalLM`.
template <class Adapter = no_adapter>
constexpr auto describe_deepseek(const deepseek_config& c, Adapter adapt = {}) {
  using attention_type = latent_attention<Adapter>;
  using query_type = typename attention_type::query_layer;
  using to_hidden = linear<dims<dim::width>, dims<dim::ffn>, false, storage::out_in>;
  using from_hidden = linear<dims<dim::ffn>, dims<dim::width>, false, storage::out_in>;
  const std::int64_t d = c.width, h = c.heads, q = c.query_latent, k = c.key_latent;
  const std::int64_t f = static_cast<std::int64_t>(c.shared) * c.ffn;
  const double deviation = c.initial_deviation, latent_epsilon = 1e-6;  // that of the stream's norms is not theirs
  const latent_head size{c.still, c.rotating, c.value};
  const auto norm = [&](const char* name, const char* role) {
    return rms_norm<>(name, d, c.epsilon, activation_named(role));
  };
  const attention_type attention{
      "self_attn",
      query_type{"",
                 adapt(typename query_type::down_base("q_a_proj", {d}, {q}, deviation)),
                 {"q_a_layernorm", q, latent_epsilon, detail::kept_qkv},
                 adapt(typename query_type::up_base("q_b_proj", {q}, {h, size.query()}, deviation)),
                 detail::kept_qkv},
      adapt(typename attention_type::down_base("kv_a_proj_with_mqa", {d}, {k + c.rotating}, deviation)),
      {"kv_a_layernorm", k, latent_epsilon, detail::kept_qkv},
      adapt(typename attention_type::up_base("kv_b_proj", {k}, {h, c.still + c.value}, deviation)),
      adapt(typename attention_type::out_base("o_proj", {h, c.value}, {d}, deviation)),
      h,
      size,
      c.theta,
      c.scaling,
      c.context,
      c.neighbours};
  experts<grouped_scores<>> routed("", "gate", c.experts, c.chosen, d, c.ffn, deviation);
  routed.router.rule = c.choice();
  routed.gate_name = "experts.*.gate_proj.weight";
  routed.down_name = "experts.*.down_proj.weight";
  routed.up_name = "experts.*.up_proj.weight";
  const auto shared =
      gated<compute::silu>("shared_experts", to_hidden("gate_proj", {d}, {f}, deviation),
                           to_hidden("up_proj", {d}, {f}, deviation), from_hidden("down_proj", {f}, {d}, deviation));
  const sum_of_layers<experts<grouped_scores<>>, std::remove_const_t<decltype(shared)>> mlp{"mlp", routed, shared, d};
  return train_only<all_but_selection_bias>(language_model{
      embedding<false>{"model", "embed_tokens.weight", "", c.vocabulary, d, c.context, deviation}, "model.layers.",
      c.layers,
      sequence(d, residual(norm("input_layernorm", "ln_1.out"), attention),
               residual(norm("post_attention_layernorm", "ln_2.out"), mlp)),
      language_head<rms_norm<>, false>(norm("model.norm", "ln_f.out"), c.vocabulary, "lm_head.weight", deviation)});
}
}  // namespace layers

using layers::describe_deepseek;
static_assert(layers::count_parameters(describe_deepseek(deepseek_tiny())) == deepseek_tiny().parameters());

/// DeepSeek-V3 with elements of type T. `How`: its sharding, by default heads, hidden units and vocabulary over tp, samples over dp and
/// experts over ep, whose ranks see the same samples; with `expert_parallel<>` they see others.
template <class T, class How = megatron_with_experts<>>
struct deepseek : described<deepseek<T, How>, T, batch<T>, deepseek_config, How> {
  static constexpr auto describe(const deepseek_config& c) { return describe_deepseek(c); }
  /// With adapters around the products of attention, not in experts and routers: for `with_lora`.
  template <class Adapter>
  static constexpr auto describe_with(const deepseek_config& c, Adapter adapt) {
    return describe_deepseek(c, adapt);
  }
};

}  // namespace heddle::inline v0::model

// heddle/model/llama.hpp: Llama as a description of layers, and as a model a trainer can be given.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/layers/grouped_attention.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/llama_config.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

namespace layers {

/// A model of Llama's shape with another layer in place of its MLP, such as a mixture of experts. `adapt` may put an adapter around each
/// linear layer of the attention. `window`: of an attention with one.
template <class Attention = grouped_attention<>, bool Tied = false, class Mlp, class Adapter = no_adapter>
constexpr auto describe_llama_with(const llama_config& c, const Mlp& mlp, Adapter adapt = {}, std::int64_t window = 0) {
  using attention_type = typename Attention::template with<Adapter>;
  const std::int64_t d = c.width, h = c.kv_heads, g = c.heads / c.kv_heads, e = c.head_dim();
  const double deviation = c.initial_deviation;
  const auto norm = [&](const char* name, const char* role) {
    return rms_norm<>(name, d, c.epsilon, activation_named(role));
  };
  attention_type attention{"self_attn",
                           adapt(typename Attention::q_base("q_proj", {d}, {h, g, e}, deviation)),
                           adapt(typename Attention::kv_base("k_proj", {d}, {h, e}, deviation)),
                           adapt(typename Attention::kv_base("v_proj", {d}, {h, e}, deviation)),
                           adapt(typename Attention::out_base("o_proj", {h, g, e}, {d}, deviation)),
                           c.theta,
                           c.scaling,
                           c.context};
  if constexpr (Attention::norms_heads) {
    attention.q_norm = typename Attention::q_norm_layer("q_norm", {h, g}, e, c.epsilon, detail::kept_qkv);
    attention.k_norm = typename Attention::k_norm_layer("k_norm", {h}, e, c.epsilon, detail::kept_qkv);
  }
  if constexpr (Attention::has_window) attention.window = window;
  attention.yarn = c.yarn;
  return language_model{embedding<false>{"model", "embed_tokens.weight", "", c.vocabulary, d, c.context, deviation},
                        "model.layers.", c.layers,
                        sequence(d, residual(norm("input_layernorm", "ln_1.out"), attention),
                                 residual(norm("post_attention_layernorm", "ln_2.out"), mlp)),
                        language_head<rms_norm<>, Tied>(norm("model.norm", "ln_f.out"), c.vocabulary,
                                                        Tied ? "" : "lm_head.weight", deviation)};
}

/// A Llama and its kin with Hugging Face's names: RMSNorm, rotary positions, grouped queries, SwiGLU. Weights lie [out, in] as
/// PyTorch's `Linear` has them and begin as N(0, initial_deviation). `Attention`: which products have biases, and whether heads are
/// normed; `Tied`: the token embedding is the head. `adapt` may put an adapter around each linear layer of the blocks.
/// Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783; Hugging Face `LlamaForCausalLM`.
template <class Attention = grouped_attention<>, bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_llama(const llama_config& c, Adapter adapt = {}, std::int64_t window = 0) {
  using to_hidden = linear<dims<dim::width>, dims<dim::ffn>, false, storage::out_in>;
  using from_hidden = linear<dims<dim::ffn>, dims<dim::width>, false, storage::out_in>;
  const std::int64_t d = c.width, f = c.ffn;
  return describe_llama_with<Attention, Tied>(
      c,
      gated<compute::silu>("mlp", adapt(to_hidden("gate_proj", {d}, {f}, c.initial_deviation)),
                           adapt(to_hidden("up_proj", {d}, {f}, c.initial_deviation)),
                           adapt(from_hidden("down_proj", {f}, {d}, c.initial_deviation))),
      adapt, window);
}

}  // namespace layers

using layers::describe_llama;
static_assert(layers::count_parameters(describe_llama(llama2_7b())) == 6738415616);
static_assert(layers::count_parameters(describe_llama(llama3_8b())) == 8030261248);
static_assert(layers::count_parameters(describe_llama<layers::grouped_attention<>, true>(llama3_2_1b())) == 1235814400);

/// Llama with elements of type T. `How` is its sharding: by default heads, hidden units and vocabulary over tp, samples over dp.
/// `Tied`: the token embedding is the head, as in Llama 3.2 1B.
template <class T, class How = megatron<>, bool Tied = false>
struct llama : described<llama<T, How, Tied>, T, batch<T>, llama_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const llama_config& c, auto... adapt) {
    return describe_llama<layers::grouped_attention<>, Tied>(c, adapt...);
  }
};
/// Llama with the token embedding as head, as the small sizes of Llama 3.2 have it.
template <class T, class How = megatron<>>
using tied_llama = llama<T, How, true>;

}  // namespace heddle::inline v0::model

// heddle/model/gpt2.hpp: GPT-2 as a description of layers, and as a model a trainer can be given.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/layers/attention.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/lora.hpp>
#include <heddle/model/layers/norms.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model {

namespace layers {

/// GPT-2 with Hugging Face's names: layer norms before attention and MLP, one product for queries, keys and values, GELU,
/// learned positions, and the token embedding as head. Weights begin as N(0, deviation), the projections back into the residual
/// stream as N(0, residual_deviation). `adapt` may put an adapter around each linear layer of the blocks. Not `Tied`: a head of its own.
/// Source: Radford et al. 2019, "Language models are unsupervised multitask learners"; Hugging Face `GPT2LMHeadModel`.
template <bool Tied = true, class Adapter = no_adapter>
constexpr auto describe_gpt2(const gpt2_config& c, double deviation, double residual_deviation, Adapter adapt = {}) {
  const std::int64_t d = c.width, h = c.heads, e = c.head_dim(), f = c.hidden(), v = c.vocabulary;
  using attention = fused_attention<true, storage::in_out, Adapter>;
  using qkv_layer = typename attention::in_base;
  using heads_layer = typename attention::out_base;
  using to_hidden = linear<dims<dim::width>, dims<dim::ffn>>;
  using from_hidden = linear<dims<dim::ffn>, dims<dim::width>>;
  const auto norm = [&](const char* name, const char* role) {
    return layer_norm<>(name, d, c.epsilon, activation_named(role));
  };
  return language_model{
      embedding<true>{"", "wte.weight", "wpe.weight", v, d, c.context, deviation}, "h.", c.layers,
      sequence(
          d,
          residual(norm("ln_1", "ln_1.out"), attention{"attn", adapt(qkv_layer("c_attn", {d}, {3, h, e}, deviation)),
                                                       adapt(heads_layer("c_proj", {h, e}, {d}, residual_deviation))}),
          residual(norm("ln_2", "ln_2.out"), gelu_mlp("mlp", adapt(to_hidden("c_fc", {d}, {f}, deviation)),
                                                      adapt(from_hidden("c_proj", {f}, {d}, residual_deviation))))),
      language_head<layer_norm<>, Tied>(norm("ln_f", "ln_f.out"), v, Tied ? "" : "lm_head.weight", deviation)};
}
template <bool Tied = true, class Adapter = no_adapter>
constexpr auto describe_gpt2(const gpt2_config& c, Adapter adapt = {}) {
  const double deviation = c.initial_deviation, projections = 2.0 * (c.layers > 0 ? c.layers : 1);
  double root = projections;  // Newton's iteration where the standard library's root is no constant
  if (std::is_constant_evaluated())
    for (int i = 0; i < 64; ++i) root = 0.5 * (root + projections / root);
  else
    root = std::sqrt(projections);
  return describe_gpt2<Tied>(c, deviation, deviation / root, adapt);
}

}  // namespace layers

using layers::describe_gpt2;
static_assert(layers::count_parameters(describe_gpt2(gpt2_config{})) == gpt2_config{}.parameters());
static_assert(layers::count_parameters(describe_gpt2<false>(gpt2_config{})) == 124439808 + 50257 * 768);

/// GPT-2 with elements of type T: names the configuration, the description, the stage that one rank holds and what a stage is
/// fed. `How` is its sharding: by default heads, hidden units and vocabulary over tp, samples over dp. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = true>
struct gpt2 : described<gpt2<T, How, Tied>, T, batch<T>, gpt2_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const gpt2_config& c, auto... adapt) { return describe_gpt2<Tied>(c, adapt...); }
};
/// GPT-2 with a head of its own, `lm_head.weight`: `tie_word_embeddings` false.
template <class T, class How = megatron<>>
using untied_gpt2 = gpt2<T, How, false>;

/// The stage of a GPT-2 with elements of type T.
template <class T, class World, class Backend, class Activations = activations::keep>
using gpt2_stage = language_stage<gpt2<T>, World, Backend, Activations>;

}  // namespace heddle::inline v0::model

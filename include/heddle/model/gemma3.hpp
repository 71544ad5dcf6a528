// heddle/model/gemma3.hpp: Gemma-3 of texts, with local and global layers, to train.
#pragma once

#include <heddle/model/gemma3_config.hpp>
#include <heddle/model/layers/normed_after.hpp>
#include <heddle/model/llama.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

namespace layers {
/// Attention of a Gemma-3 in its layers of the one kind or the other.
template <bool Local>
using gemma3_attention = grouped_attention<false, false, true, storage::out_in, no_adapter, Local, shifted_head_norm>;

/// A Gemma with norms before and behind layers, which multiply by 1 + w. `Attention<Local>`: of its layers of either kind; `nearby`: rotary
/// settings of local ones. `Capped`: the caps are those of scores and of logits.
template <template <bool> class Attention, bool Tied, bool Capped, class Adapter>
constexpr auto describe_gemma_with(const gemma3_config& c, const llama_config& nearby, Adapter adapt,
                                   double score_cap = 0, double logit_cap = 0) {
  using to_hidden = linear<dims<dim::width>, dims<dim::ffn>, false, storage::out_in>;
  using from_hidden = linear<dims<dim::ffn>, dims<dim::width>, false, storage::out_in>;
  using norm = rms_norm<dim::width, true>;
  const std::int64_t d = c.width, f = c.ffn;
  const auto mlp = gated<compute::gelu_tanh>("mlp", adapt(to_hidden("gate_proj", {d}, {f}, c.initial_deviation)),
                                             adapt(to_hidden("up_proj", {d}, {f}, c.initial_deviation)),
                                             adapt(from_hidden("down_proj", {f}, {d}, c.initial_deviation)));
  const auto half = [&](const char* before, const char* role, const auto& layer, const char* behind) {
    return residual(norm(before, d, c.epsilon, activation_named(role)),
                    normed_after(layer, norm(behind, d, c.epsilon)));
  };
  const auto block = [&](const auto& of) {
    auto attention = of.block.first.f;
    attention.score_scale = c.score_scale();
    attention.score_cap = score_cap;
    return sequence(d, half("input_layernorm", "ln_1.out", attention, "post_attention_layernorm"),
                    half("pre_feedforward_layernorm", "ln_2.out", of.block.second.f, "post_feedforward_layernorm"));
  };
  const auto whole = describe_llama_with<Attention<false>, Tied>(c, mlp, adapt);
  const auto local = describe_llama_with<Attention<true>, Tied>(nearby, mlp, adapt, c.window);
  language_head<norm, Tied, false, Capped> head(norm("model.norm", d, c.epsilon, activation_named("ln_f.out")),
                                                c.vocabulary, whole.out.weight_name, c.initial_deviation);
  head.logit_cap = logit_cap;
  return language_model{embedding<false, true>{whole.in.name, whole.in.tokens_name, "", c.vocabulary, d, c.context,
                                               c.initial_deviation, c.embedding_multiplier()},
                        whole.block_name,
                        whole.count,
                        block(local),
                        head,
                        block(whole),
                        other_layers{.every = c.global_every, .first = c.global_every - 1}};
}
/// Gemma-3 of texts with Hugging Face's names. Source: Hugging Face `Gemma3ForCausalLM`.
template <bool Tied = true, class Adapter = no_adapter>
constexpr auto describe_gemma3(const gemma3_config& c, Adapter adapt = {}) {
  llama_config nearby = c;
  nearby.theta = c.local_theta;
  nearby.scaling = {};
  nearby.yarn = {};
  return describe_gemma_with<gemma3_attention, Tied, false>(c, nearby, adapt);
}
}  // namespace layers

using layers::describe_gemma3;
static_assert(layers::count_parameters(describe_gemma3(gemma3_270m())) == 268098176);
static_assert(layers::count_parameters(describe_gemma3(gemma3_1b())) == 999885952);
static_assert(gemma3_270m().parameters() == 268098176 && gemma3_1b().parameters() == 999885952);

/// Gemma-3 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct gemma3 : described<gemma3<T, How, Tied>, T, batch<T>, gemma3_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const gemma3_config& c, auto... adapt) { return describe_gemma3<Tied>(c, adapt...); }
};
/// Gemma-3 with the token embedding as head, as it is published.
template <class T, class How = megatron<>>
using tied_gemma3 = gemma3<T, How, true>;

}  // namespace heddle::inline v0::model

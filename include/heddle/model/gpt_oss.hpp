// heddle/model/gpt_oss.hpp: GPT-OSS, with sinks and biases of experts, as a model.
#pragma once

#include <heddle/model/gpt_oss_config.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/model/llama.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Attention of a GPT-OSS in its layers with a window or without.
template <bool Local>
using gpt_oss_attention =
    grouped_attention<true, true, false, storage::out_in, no_adapter, Local, head_norm, storage::out_in, false, true>;

/// GPT-OSS with Hugging Face's names; those of an expert are its own, `experts.*.gate_proj.weight`, where files stack all of a block.
/// Source: OpenAI 2025, arXiv:2508.10925; Hugging Face `GptOssForCausalLM`.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_gpt_oss(const gpt_oss_config& c, Adapter adapt = {}) {
  experts<with_bias<compute::softmax_of_chosen>, compute::clamped_swiglu, dropless, send_choices, with_biases> mixture(
      "mlp", "router", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
  mixture.balance = c.balance;
  mixture.gate_name = "experts.*.gate_proj.weight";
  mixture.down_name = "experts.*.down_proj.weight";
  mixture.up_name = "experts.*.up_proj.weight";
  auto local = describe_llama_with<gpt_oss_attention<true>, Tied>(c, mixture, adapt, c.window);
  auto whole = describe_llama_with<gpt_oss_attention<false>, Tied>(c, mixture, adapt);
  local.block.first.f.sink_deviation = whole.block.first.f.sink_deviation = c.initial_deviation;
  return language_model{local.in,
                        local.block_name,
                        local.count,
                        local.block,
                        local.out,
                        whole.block,
                        other_layers{.every = c.global_every, .first = c.global_every - 1}};
}
}  // namespace layers

using layers::describe_gpt_oss;
static_assert(layers::count_parameters(describe_gpt_oss(gpt_oss_20b())) == 20914757184);
static_assert(layers::count_parameters(describe_gpt_oss(gpt_oss_120b())) == 116829156672);
static_assert(gpt_oss_20b().parameters() == 20914757184 && gpt_oss_120b().parameters() == 116829156672);

/// GPT-OSS with elements of type T. `How`: its sharding, as of `mixtral`. `Tied`: the token embedding is the head.
template <class T, class How = megatron_with_experts<>, bool Tied = false>
struct gpt_oss : described<gpt_oss<T, How, Tied>, T, batch<T>, gpt_oss_config, How> {
  /// `adapt`: adapters around the products of attention, not in experts and routers, for `with_lora`; or nothing.
  static constexpr auto describe(const gpt_oss_config& c, auto... adapt) { return describe_gpt_oss<Tied>(c, adapt...); }
};
/// GPT-OSS with the token embedding as head.
template <class T, class How = megatron_with_experts<>>
using tied_gpt_oss = gpt_oss<T, How, true>;

}  // namespace heddle::inline v0::model

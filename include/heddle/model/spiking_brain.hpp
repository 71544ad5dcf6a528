// heddle/model/spiking_brain.hpp: SpikingBrain-7B: linear attention and windows.
#pragma once

#include <heddle/model/layers/block_kinds.hpp>
#include <heddle/model/layers/gated_linear_attention.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/spiking_brain_config.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

namespace layers {
/// Its odd layers are a Qwen-2's with a window. In its even ones `self_attn` has `gk_proj.0` and `gk_proj.1`, whose product makes the gates, and the norm `g_norm` of each head's output.
/// Source: arXiv:2509.05276; the repository BICLab/SpikingBrain-7B.
constexpr auto describe_spiking_brain(const spiking_brain_config& c) {
  using windowed = grouped_attention<true, false, false, storage::out_in, no_adapter, true>;
  using linear_attention = gated_linear_attention;
  const auto whole = describe_llama<windowed>(c, no_adapter{}, c.window);
  const std::int64_t d = c.width, h = c.kv_heads, g = c.heads / c.kv_heads, e = c.head_dim(), r = c.gate_rank;
  const double deviation = c.initial_deviation;
  const linear_attention attention{"self_attn",
                                   linear_attention::q_layer("q_proj", {d}, {h, g, e}, deviation),
                                   linear_attention::kv_layer("k_proj", {d}, {h, e}, deviation),
                                   linear_attention::kv_layer("v_proj", {d}, {h, e}, deviation),
                                   linear_attention::down_layer("gk_proj.0", {d}, {r}, deviation),
                                   linear_attention::up_layer("gk_proj.1", {r}, {h, e}, deviation),
                                   linear_attention::norm_layer("g_norm", {h, g}, e, 1e-5, detail::kept_heads),
                                   linear_attention::out_layer("o_proj", {h, g, e}, {d}, deviation),
                                   c.gate_normalizer};
  const auto [first, second] = whole.block.children();
  return language_model{
      whole.in,
      whole.block_name,
      whole.count,
      whole.block,
      whole.out,
      sequence(d, residual(rms_norm<>("input_layernorm", d, c.epsilon, activation_named("ln_1.out")), attention),
               second),
      other_layers{.every = 2, .first = 0}};
}
}  // namespace layers

using layers::describe_spiking_brain;
static_assert(layers::count_parameters(describe_spiking_brain(spiking_brain_7b())) == 7616542976);

/// SpikingBrain-7B with elements of type T. `How`: its sharding; states are split as heads are.
template <class T, class How = megatron<>>
struct spiking_brain : described<spiking_brain<T, How>, T, batch<T>, spiking_brain_config, How> {
  static constexpr auto describe(const spiking_brain_config& c) { return describe_spiking_brain(c); }
};

}  // namespace heddle::inline v0::model

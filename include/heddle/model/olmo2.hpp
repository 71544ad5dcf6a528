// heddle/model/olmo2.hpp: OLMo-2, a Llama with norms behind its layers, described and as a model.
#pragma once

#include <heddle/model/layers/normed_after.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/olmo2_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Attention of an OLMo-2: a Llama's, with norms of all queries together, and of all keys.
using joined_norms_attention =
    grouped_attention<false, false, true, storage::out_in, no_adapter, false, joined_head_norm>;

/// OLMo-2 with Hugging Face's names. Source: Hugging Face `Olmo2ForCausalLM`.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_olmo2(const olmo2_config& c, Adapter adapt = {}) {
  const auto whole = describe_llama<joined_norms_attention, Tied>(c, adapt);
  const auto after = [&](const auto& f, const char* norm) {
    return plain_residual(normed_after(f, rms_norm<>(norm, c.width, c.epsilon)));
  };
  return language_model{whole.in, whole.block_name, whole.count,
                        sequence(c.width, after(whole.block.first.f, "post_attention_layernorm"),
                                 after(whole.block.second.f, "post_feedforward_layernorm")),
                        whole.out};
}
}  // namespace layers

using layers::describe_olmo2;
static_assert(layers::count_parameters(describe_olmo2(olmo2_1b())) == 1484916736);
static_assert(layers::count_parameters(describe_olmo2(olmo2_7b())) == 7298617344);
static_assert(layers::count_parameters(describe_olmo2(olmo2_13b())) == 13716198400);
static_assert(olmo2_7b().parameters() == 7298617344);

/// OLMo-2 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct olmo2 : described<olmo2<T, How, Tied>, T, batch<T>, olmo2_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const olmo2_config& c, auto... adapt) { return describe_olmo2<Tied>(c, adapt...); }
};
/// OLMo-2 with the token embedding as head.
template <class T, class How = megatron<>>
using tied_olmo2 = olmo2<T, How, true>;

}  // namespace heddle::inline v0::model

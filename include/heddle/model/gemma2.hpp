// heddle/model/gemma2.hpp: Gemma-2, whose scores and logits have caps, described and as a model.
#pragma once

#include <heddle/model/gemma2_config.hpp>
#include <heddle/model/gemma3.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Attention of a Gemma-2 in its layers of the one kind or the other.
template <bool Local>
using gemma2_attention =
    grouped_attention<false, false, false, storage::out_in, no_adapter, Local, head_norm, storage::out_in, true>;

/// Gemma-2 with Hugging Face's names. Source: Hugging Face `Gemma2ForCausalLM`.
template <bool Tied = true, class Adapter = no_adapter>
constexpr auto describe_gemma2(const gemma2_config& c, Adapter adapt = {}) {
  return describe_gemma_with<gemma2_attention, Tied, true>(c, c, adapt, c.score_cap, c.logit_cap);
}
}  // namespace layers

using layers::describe_gemma2;
static_assert(layers::count_parameters(describe_gemma2(gemma2_2b())) == 2614341888);
static_assert(layers::count_parameters(describe_gemma2(gemma2_9b())) == 9241705984);
static_assert(gemma2_2b().parameters() == 2614341888 && gemma2_9b().parameters() == 9241705984);

/// Gemma-2 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct gemma2 : described<gemma2<T, How, Tied>, T, batch<T>, gemma2_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const gemma2_config& c, auto... adapt) { return describe_gemma2<Tied>(c, adapt...); }
};
/// Gemma-2 with the token embedding as head, as it is published.
template <class T, class How = megatron<>>
using tied_gemma2 = gemma2<T, How, true>;

}  // namespace heddle::inline v0::model

// heddle/model/mistral.hpp: Mistral, a Llama with a window, as layers and as a model.
#pragma once

#include <heddle/model/llama.hpp>
#include <heddle/model/mistral_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Attention of a Mistral: a Llama's, of the last tokens.
using windowed_attention = grouped_attention<false, false, false, storage::out_in, no_adapter, true>;

/// Mistral with Hugging Face's names. Source: Jiang et al. 2023, arXiv:2310.06825; Hugging Face `MistralForCausalLM`.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_mistral(const mistral_config& c, Adapter adapt = {}) {
  return describe_llama<windowed_attention, Tied>(c, adapt, c.window);
}
}  // namespace layers

using layers::describe_mistral;
static_assert(layers::count_parameters(describe_mistral(mistral_7b())) == 7241732096);

/// Mistral with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct mistral : described<mistral<T, How, Tied>, T, batch<T>, mistral_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const mistral_config& c, auto... adapt) { return describe_mistral<Tied>(c, adapt...); }
};
/// Mistral with the token embedding as head.
template <class T, class How = megatron<>>
using tied_mistral = mistral<T, How, true>;

}  // namespace heddle::inline v0::model

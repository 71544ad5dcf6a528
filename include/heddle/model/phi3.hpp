// heddle/model/phi3.hpp: Phi-3 and Phi-4, Llamas with partial rotary positions.
#pragma once

#include <heddle/model/mistral.hpp>
#include <heddle/model/phi3_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Phi-3 with a Llama's names: files have queries, keys and values in one tensor, gates and their factors in another (`hugging_face_names`).
/// Source: Hugging Face `Phi3ForCausalLM`.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_phi3(const phi3_config& c, Adapter adapt = {}) {
  auto whole = describe_llama<windowed_attention, Tied>(c, adapt, c.last_tokens());
  whole.block.first.f.rotating = c.rotating;
  whole.block.first.f.longrope = c.longrope;
  return whole;
}
}  // namespace layers

using layers::describe_phi3;
static_assert(layers::count_parameters(describe_phi3(phi3_mini())) == 3821079552);
static_assert(layers::count_parameters(describe_phi3(phi4())) == 14659507200);
static_assert(layers::count_parameters(describe_phi3<true>(phi4_mini())) == 3836021760);

/// Phi-3 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct phi3 : described<phi3<T, How, Tied>, T, batch<T>, phi3_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const phi3_config& c, auto... adapt) { return describe_phi3<Tied>(c, adapt...); }
};
/// Phi-3 with the token embedding as head, as Phi-4-mini is published.
template <class T, class How = megatron<>>
using tied_phi3 = phi3<T, How, true>;

}  // namespace heddle::inline v0::model

// heddle/model/smollm3.hpp: SmolLM3, a Llama some of whose layers do not rotate.
#pragma once

#include <heddle/model/llama.hpp>
#include <heddle/model/smollm3_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// SmolLM3 with Hugging Face's names. Source: Hugging Face `SmolLM3ForCausalLM`.
template <bool Tied = true, class Adapter = no_adapter>
constexpr auto describe_smollm3(const smollm3_config& c, Adapter adapt = {}) {
  const auto whole = describe_llama<grouped_attention<>, Tied>(c, adapt);
  auto still = whole.block;
  still.first.f.rotates = false;
  return language_model{whole.in,
                        whole.block_name,
                        whole.count,
                        whole.block,
                        whole.out,
                        still,
                        other_layers{.every = c.still_every, .first = c.still_every - 1}};
}
}  // namespace layers

using layers::describe_smollm3;
static_assert(layers::count_parameters(describe_smollm3(smollm3_3b())) == 3075098624);

/// SmolLM3 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct smollm3 : described<smollm3<T, How, Tied>, T, batch<T>, smollm3_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const smollm3_config& c, auto... adapt) { return describe_smollm3<Tied>(c, adapt...); }
};
/// SmolLM3 with the token embedding as head, as it is published.
template <class T, class How = megatron<>>
using tied_smollm3 = smollm3<T, How, true>;

}  // namespace heddle::inline v0::model

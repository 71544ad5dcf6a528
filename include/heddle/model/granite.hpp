// heddle/model/granite.hpp: Granite, a Llama with multipliers, described and as a model.
#pragma once

#include <heddle/model/granite_config.hpp>
#include <heddle/model/layers/multiplied.hpp>
#include <heddle/model/llama.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

namespace layers {
/// Granite with Hugging Face's names. Logits are those of the final norm's output over the divisor. Source: Hugging Face `GraniteForCausalLM`.
template <bool Tied = true, class Adapter = no_adapter>
constexpr auto describe_granite(const granite_config& c, Adapter adapt = {}) {
  const auto whole = describe_llama<grouped_attention<>, Tied>(c, adapt);
  const std::int64_t d = c.width;
  auto first = whole.block.first;
  first.f.score_scale = c.score_multiplier;
  const auto added = [&](const auto& half) {
    return residual(half.norm, multiplied(half.f, c.residual_multiplier, d));
  };
  const auto& norm = whole.out.norm;
  return language_model{
      embedding<false, true>{whole.in.name, whole.in.tokens_name, "", c.vocabulary, d, c.context, c.initial_deviation,
                             c.embedding_multiplier},
      whole.block_name, whole.count, sequence(d, added(first), added(whole.block.second)),
      language_head<multiplied<rms_norm<>>, Tied>(multiplied(norm, 1 / c.logits_divisor, d, norm.role), c.vocabulary,
                                                  whole.out.weight_name, c.initial_deviation)};
}
}  // namespace layers

using layers::describe_granite;
static_assert(layers::count_parameters(describe_granite(granite3_2b())) == 2533531648);
static_assert(layers::count_parameters(describe_granite(granite3_8b())) == 8170848256);

/// Granite with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct granite : described<granite<T, How, Tied>, T, batch<T>, granite_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const granite_config& c, auto... adapt) { return describe_granite<Tied>(c, adapt...); }
};
/// Granite with the token embedding as head, as it is published.
template <class T, class How = megatron<>>
using tied_granite = granite<T, How, true>;

}  // namespace heddle::inline v0::model

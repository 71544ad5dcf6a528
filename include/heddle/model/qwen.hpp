// heddle/model/qwen.hpp: Qwen-2 and Qwen-3 as descriptions, and as models to train.
#pragma once

#include <heddle/model/llama.hpp>
#include <heddle/model/qwen_config.hpp>

namespace heddle::inline v0::model {

namespace layers {
/// Qwen-2 with Hugging Face's names.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_qwen2(const qwen2_config& c, Adapter adapt = {}) {
  return describe_llama<grouped_attention<true>, Tied>(c, adapt);
}
/// Qwen-3 with Hugging Face's names.
template <bool Tied = false, class Adapter = no_adapter>
constexpr auto describe_qwen3(const qwen3_config& c, Adapter adapt = {}) {
  return describe_llama<grouped_attention<false, false, true>, Tied>(c, adapt);
}
}  // namespace layers

using layers::describe_qwen2;
using layers::describe_qwen3;
static_assert(layers::count_parameters(describe_qwen2<true>(qwen2_0_5b())) == 494032768);
static_assert(layers::count_parameters(describe_qwen2(qwen2_7b())) == 7615616512);
static_assert(qwen2_7b().parameters() == 7615616512 && qwen3_8b().parameters() == 8190735360);
static_assert(layers::count_parameters(describe_qwen3<true>(qwen3_0_6b())) == 596049920);
static_assert(layers::count_parameters(describe_qwen3(qwen3_8b())) == 8190735360);

/// Qwen-2 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct qwen2 : described<qwen2<T, How, Tied>, T, batch<T>, qwen2_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const qwen2_config& c, auto... adapt) { return describe_qwen2<Tied>(c, adapt...); }
};

/// Qwen-3 with elements of type T. `How`: its sharding. `Tied`: the token embedding is the head.
template <class T, class How = megatron<>, bool Tied = false>
struct qwen3 : described<qwen3<T, How, Tied>, T, batch<T>, qwen3_config, How> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const qwen3_config& c, auto... adapt) { return describe_qwen3<Tied>(c, adapt...); }
};

/// Qwen-2 with the token embedding as head, as its small sizes have it.
template <class T, class How = megatron<>>
using tied_qwen2 = qwen2<T, How, true>;
/// Qwen-3 with the token embedding as head, as its small sizes have it.
template <class T, class How = megatron<>>
using tied_qwen3 = qwen3<T, How, true>;

}  // namespace heddle::inline v0::model

// heddle/model/with_lora.hpp: a model with low-rank adapters, which alone are trained.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/layers/lora.hpp>
#include <heddle/model/lora_config.hpp>

namespace heddle::inline v0::model {

/// `Base` (`gpt2`, `llama`, `qwen2`, `qwen3`) with an adapter around each linear layer of its blocks; everything else is frozen: no
/// gradients, no optimizer state, nothing to send, and a save of a trainer holds the adapters alone. Parameters keep their names; those of
/// adapters end in `lora_A.weight` and `lora_B.weight`. The sharding is that of `Base`, whose `describe(config, adapter)` gives the adapter
/// to its linear layers: a model of your own takes it as `auto... adapt`.
/// Source: Hu et al. 2021, arXiv:2106.09685.
template <class Base>
struct with_lora : detail::described_as<with_lora<Base>, Base, lora_config<typename Base::config>> {
  static constexpr auto describe(const lora_config<typename Base::config>& c) {
    constexpr bool adapts = requires { Base::describe(c, layers::low_rank_adapter{}); };
    static_assert(adapts,
                  "heddle: with_lora needs a model whose describe(config, adapter) takes an adapter (`auto... adapt`)");
    if constexpr (adapts)
      return layers::train_only<layers::adapters>(
          Base::describe(c, layers::low_rank_adapter{c.adapter_rank, c.adapter_alpha}));
    else
      return Base::describe(c);
  }
};

}  // namespace heddle::inline v0::model

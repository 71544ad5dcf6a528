// heddle/model/with_lora.hpp: a model with low-rank adapters, of which the adapters alone are trained.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/layers/lora.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::model {

/// A model's configuration, and that of its adapters.
template <class Config>
struct lora_config : Config {
  int adapter_rank = 8;
  double adapter_alpha = 16;  ///< adapters' outputs are multiplied by alpha / rank

  /// Errors: `config_error` naming what does not fit.
  void validate() const {
    Config::validate();
    if (adapter_rank < 1 || adapter_rank > Config::width)
      throw config_error("heddle: the rank of an adapter must be 1 to the width, " + std::to_string(Config::width) +
                         ", got " + std::to_string(adapter_rank));
    if (!std::isfinite(adapter_alpha))
      throw config_error("heddle: the alpha of an adapter must be finite, got " + number_text(adapter_alpha));
  }
};
/// In words, as for the model without adapters.
template <class Config>
std::string to_string(const lora_config<Config>& c) {
  return to_string(static_cast<const Config&>(c)) + ", adapters of rank " + std::to_string(c.adapter_rank) +
         ", alpha " + std::to_string(c.adapter_alpha);
}

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

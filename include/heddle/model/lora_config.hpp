// heddle/model/lora_config.hpp: the configuration of a model with low-rank adapters.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

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

}  // namespace heddle::inline v0::model

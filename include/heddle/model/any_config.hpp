// heddle/model/any_config.hpp: the configuration of a Hugging Face model without its type.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/hugging_face_model.hpp>
#include <heddle/model/lora_config.hpp>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace heddle::inline v0::model {

/// A model, and the low-rank adapters around its linear layers where `adapter_rank` is above 0. Numbers that all families have are members;
/// `with(f)` calls f with the configuration of the family, or its `lora_config`.
struct any_config {
  hugging_face_model of{};
  int layers = 0, width = 0, context = 0, vocabulary = 0;
  double initial_deviation = 0;
  int adapter_rank = 0;
  double adapter_alpha = 0;

  any_config() = default;
  /// `most_context`: samples have at most so many tokens; 0: as many as the model takes. A GPT-2 keeps its own, of which it has a table.
  explicit any_config(hugging_face_model model, int most_context = 0, int rank = 0, double alpha = 0)
      : of(std::move(model)), adapter_rank(rank), adapter_alpha(alpha) {
    std::visit(
        [&]<class Config>(Config& c) {
          if constexpr (!std::is_same_v<Config, gpt2_config>)
            if (most_context > 0) c.context = (std::min)(c.context, most_context);
          layers = c.layers;
          width = c.width;
          context = c.context;
          vocabulary = c.vocabulary;
          initial_deviation = c.initial_deviation;
        },
        of.config);
  }

  template <class F>
  decltype(auto) with(F&& f) const {
    return std::visit(
        [&]<class Config>(const Config& c) {
          return adapter_rank > 0 ? f(lora_config<Config>{c, adapter_rank, adapter_alpha}) : f(c);
        },
        of.config);
  }
  /// Errors: `config_error` naming what does not fit.
  void validate() const {
    with([](const auto& c) { c.validate(); });
  }
};
/// How many experts a block has; 0 for a family without.
inline int experts_of(const any_config& c) {
  return std::visit(
      []<class Config>(const Config& of) {
        if constexpr (requires { of.experts; })
          return static_cast<int>(of.experts);
        else
          return 0;
      },
      c.of.config);
}
/// Refuses `ranks` along ep, if there are several, for a model without experts. Errors: `config_error` with the family.
inline void require_experts(const any_config& c, int ranks) {
  if (ranks > 1 && experts_of(c) == 0)
    throw config_error("heddle: ep=" + std::to_string(ranks) + " splits experts, and a " + std::string(c.of.family()) +
                       " has none: take tp or dp");
}
/// Refuses ranks that do not divide the experts, too. Errors: as `require_experts`; `config_error` with both numbers.
inline void require_expert_ranks(const any_config& c, int ranks) {
  require_experts(c, ranks);
  if (ranks > 1 && experts_of(c) % ranks != 0)
    throw config_error("heddle: ep=" + std::to_string(ranks) + " does not divide the " + std::to_string(experts_of(c)) +
                       " experts of this " + std::string(c.of.family()));
}
/// In words, as of the family's configuration.
inline std::string to_string(const any_config& c) {
  return c.with([](const auto& of) { return to_string(of); });
}

}  // namespace heddle::inline v0::model

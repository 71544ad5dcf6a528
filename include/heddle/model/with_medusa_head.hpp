// heddle/model/with_medusa_head.hpp: a model with one head of Medusa, trained alone.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/layers/medusa_head.hpp>
#include <heddle/model/layers/trained.hpp>
#include <heddle/model/parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::model {

/// `Base` (a language model such as `llama`, `qwen2`, `qwen3`, `deepseek`) with a head of Medusa in place of its own; everything below is frozen: Medusa-1. A head is trained like the model,
/// by a trainer, on `further_targets`. Heads of one model do not depend on each other, so each is trained alone. New parameters are
/// `medusa_head.0.linear.weight` and `medusa_head.1.weight`; all others keep their names.
/// Source: Cai et al. 2024, arXiv:2401.10774, section 2.2.1.
template <class Base>
struct with_medusa_head : detail::described_as<with_medusa_head<Base>, Base> {
  static constexpr auto describe(const typename Base::config& c) {
    const auto whole = Base::describe(c);
    static_assert(!layers::detail::makes_logits_in_chunks<decltype(whole.out)>,
                  "heddle: with_medusa_head puts a head in place of one that makes its logits in chunks: write "
                  "with_chunked_loss<with_medusa_head<Base>, Words>");
    static_assert(!requires { typename decltype(whole.out)::own_loss; },
                  "heddle: with_medusa_head trains a head by cross-entropy: the model must not have an rl::policy's");
    return layers::train_only<layers::medusa_parameters>(layers::with_head(whole, headed(whole.out)));
  }

 private:
  template <class Norm, bool Tied, bool Capped>
  static constexpr auto headed(const layers::language_head<Norm, Tied, false, Capped>& out) {
    using block = layers::medusa_block<Norm>;
    return layers::language_head<block, false>(block(out.norm), out.vocabulary, "medusa_head.1.weight");
  }
};

/// Fills the stage of a model with a head of Medusa from the same stage of the model: what both have, and the head's last weight from the model's head, or its
/// token embedding where that is the head. Where weights are kept twice (`masters_in<float>`), call `train::adopt_weights(trainer)` after it: steps begin at the
/// masters, and the first would put what the trainer drew in place of the head.
/// Errors: `config_error` for a parameter that the model lacks, and where the weights of either stage are not here (`zero<3>`).
template <class To, class From>
void begin_medusa_head(To& to, From& from) {
  using T = typename To::scalar;
  detail::require_weights_here(to, "begin_medusa_head");
  detail::require_weights_here(from, "begin_medusa_head");
  const auto find = [](auto& stage, std::string_view name) -> std::span<const T> {
    for (const parameter& p : stage.parameters())
      if (p.name == name)
        return std::span<const T>(stage.weights())
            .subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    for (const parameter& p : stage.frozen_parameters())
      if (p.name == name)
        return std::span<const T>(stage.frozen_weights())
            .subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    return {};
  };
  const auto fill = [&](const std::vector<parameter>& table, std::span<T> weights) {
    for (const parameter& p : table) {
      std::span<const T> source = find(from, p.name);
      const bool of_head = p.name.starts_with("medusa_head.");
      if (p.count == 0 || (of_head && source.empty() && p.name.ends_with(".0.linear.weight"))) continue;
      if (of_head && p.name.ends_with(".1.weight"))
        for (const char* const name : {"lm_head.weight", "model.embed_tokens.weight", "wte.weight"})
          if (source.empty()) source = find(from, name);
      if (std::ssize(source) != p.count)
        throw config_error("heddle: begin_medusa_head: '" + p.name + "' should have " + std::to_string(p.count) +
                           " elements on this rank, the model has " + std::to_string(source.size()));
      std::copy(source.begin(), source.end(), weights.begin() + p.offset);
    }
  };
  fill(to.parameters(), to.weights());
  fill(to.frozen_parameters(), to.frozen_weights());
}

}  // namespace heddle::inline v0::model

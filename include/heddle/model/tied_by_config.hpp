// heddle/model/tied_by_config.hpp: a model whose configuration ties its embedding.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/layers/ends.hpp>

namespace heddle::inline v0::model {

/// A model's configuration, and whether its token embedding is the head.
template <class Config>
struct tied_config : Config {
  bool tied = false;
};

/// `Base` (`llama`, `qwen3`, ... with a head of its own) and the same with a tied head as one type. Parameters, their names, initial weights,
/// messages and numbers are those of `Base`, or of the tied model.
template <class Base>
struct tied_by_config : detail::described_as<tied_by_config<Base>, Base, tied_config<typename Base::config>> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const tied_config<typename Base::config>& c, auto... adapt) {
    const auto whole = Base::describe(c, adapt...);
    return layers::with_head(whole, chosen(whole.out, c.tied));
  }

 private:
  template <class Norm, bool Capped>
  static constexpr auto chosen(const layers::language_head<Norm, false, false, Capped>& of, bool tied) {
    layers::language_head<Norm, true, true, Capped> head(of.norm, of.vocabulary, of.weight_name, of.deviation);
    head.is_tied = tied;
    head.logit_cap = of.logit_cap;
    return head;
  }
};

}  // namespace heddle::inline v0::model

// heddle/model/with_medusa_heads.hpp: a model trained together with Medusa's heads.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/layers/joint_heads.hpp>
#include <heddle/model/layers/trained.hpp>

#include <type_traits>

namespace heddle::inline v0::model {

namespace detail {
// Carries what is trained into the compiler's message.
template <class Trained, class Heads>
inline constexpr bool heads_are_trained = layers::trains_all_of<Trained, Heads>;
template <bool Ok, class Model>
inline constexpr bool logits_have_no_cap = Ok;
}  // namespace detail

/// `Base` (a language model with a head of its own such as `llama`, `deepseek`) with `K` heads of Medusa beside its head. The heads are
/// trained, and what `Base` trains, with the same blocks: Medusa-2. `begin_medusa_head` fills it from the model, and
/// `infer::medusa_heads::put_joint` with heads that were trained alone first. New parameters are `medusa_head.k.0.linear.weight` and
/// `medusa_head.k.1.weight` for k = 0, ..., K - 1; all others keep their names, so that what was trained is read as a `Base`. Heads learn
/// faster than the model with `adamw_options::rates`.
/// Source: Cai et al. 2024, arXiv:2401.10774, section 2.2.2.
template <class Base, int K, class Weights = layers::medusa_weights>
struct with_medusa_heads : detail::described_as<with_medusa_heads<Base, K, Weights>, Base> {
  static constexpr auto describe(const typename Base::config& c) {
    const auto whole = Base::describe(c);
    static_assert(!layers::detail::makes_logits_in_chunks<decltype(whole.out)>,
                  "heddle: with_medusa_heads trains heads that keep their logits: take the model without "
                  "with_chunked_loss");
    static_assert(
        !requires { typename decltype(whole.out)::own_loss; },
        "heddle: with_medusa_heads trains heads by cross-entropy: the model must not have an rl::policy's");
    const auto made = layers::with_head(whole, joined(whole.out));
    static_assert(
        detail::heads_are_trained<layers::trained_of<decltype(made)>, std::remove_const_t<decltype(made.out)>>,
        "heddle: with_medusa_heads trains a model with its heads; the description of the model (with_lora, say) "
        "freezes the heads: train them with with_medusa_head");
    return made;
  }

 private:
  template <class Norm, bool Capped>
  static constexpr auto joined(const layers::language_head<Norm, false, false, Capped>& out) {
    static_assert(detail::logits_have_no_cap<!Capped, Base>,
                  "heddle: with_medusa_heads joins heads whose logits have no cap: train those of this model with "
                  "with_medusa_head");
    if constexpr (Capped)
      return out;
    else
      return layers::joint_heads<Norm, K, Weights>(out);
  }
};

}  // namespace heddle::inline v0::model

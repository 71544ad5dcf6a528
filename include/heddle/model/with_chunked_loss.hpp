// heddle/model/with_chunked_loss.hpp: a language model whose logits come in chunks.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/layers/chunked_head.hpp>
#include <heddle/model/layers/trained.hpp>

#include <type_traits>

namespace heddle::inline v0::model {

namespace detail {
template <bool Ok, class Head>
inline constexpr bool head_goes_in_chunks = Ok;
template <int Words, class Norm, bool Tied>
constexpr auto in_chunks(const layers::language_head<Norm, Tied>& of) {
  return layers::chunked_head<Norm, Tied, Words>(of);
}
template <int Words, class Description>
constexpr auto with_head_in_chunks(const Description& whole) {
  using head = std::remove_cvref_t<decltype(whole.out)>;
  constexpr bool some = Words > 0;
  static_assert(
      head_goes_in_chunks<some, head>,
      "heddle: with_chunked_loss<Base, Words>: logits are made of Words words at a time, which must be positive");
  constexpr bool possible = requires { in_chunks<Words>(whole.out); } && !requires { typename head::own_loss; };
  static_assert(
      head_goes_in_chunks<possible, head>,
      "heddle: with_chunked_loss makes the logits of a layers::language_head in chunks; this model has another "
      "head");
  if constexpr (some && possible)
    return layers::with_head(whole, in_chunks<Words>(whole.out));
  else
    return whole;
}
}  // namespace detail

/// `Base` (`gpt2`, `llama`, `mixtral`, ..., also one inside `with_lora` or `with_medusa_head`) whose head makes the logits of at most
/// `Words` of a rank's words at a time and keeps none (`layers::chunked_head`): a microbatch of n rows keeps two numbers of each row where it kept n times the words of the rank, and backward makes
/// the logits again, a fourth product beside the head's three. All of them are made before `backward_weight`.
/// Losses and gradients are those of `Base` up to rounding; parameters, their names, saves and
/// samples are the same. The backend must have `chunked_cross_entropy_facet`: the host and CUDA have.
///
/// `hd::train::make_trainer<strategy>(hd::model::with_chunked_loss<hd::model::gpt2<float>, 4096>{}, world, options);`
template <class Base, int Words>
struct with_chunked_loss : detail::described_as<with_chunked_loss<Base, Words>, Base> {
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const typename Base::config& c, auto... adapt)
    requires requires { Base::describe(c, adapt...); }
  {
    return detail::with_head_in_chunks<Words>(Base::describe(c, adapt...));
  }
};

}  // namespace heddle::inline v0::model

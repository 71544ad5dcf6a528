// heddle/model/layers/cached_traits.hpp: what a layer and its children keep of earlier tokens, as constants of its type.
#pragma once

#include <heddle/model/layers/description.hpp>

namespace heddle::inline v0::model::layers {

namespace detail {
template <class Layer>
struct keeps_of_tokens;
template <class List>
struct children_keep;
template <class... C>
struct children_keep<list<C...>> {
  static constexpr bool has_states = (keeps_of_tokens<C>::has_states || ...);
  static constexpr bool windows = (keeps_of_tokens<C>::windows || ...);
  static constexpr bool sees_all = (keeps_of_tokens<C>::sees_all || ...);
};
template <class Layer>
struct keeps_of_tokens {
  using children = children_keep<children_of<Layer>>;
  static constexpr bool has_window = requires { requires Layer::has_window; };
  static constexpr bool has_states = requires(const Layer& l) { l.state_tensors(); } || children::has_states;
  static constexpr bool windows = has_window || children::windows;
  static constexpr bool sees_all = (cached_of<Layer>::size > 0 && !has_window) || children::sees_all;
};
}  // namespace detail

/// Of a layer with its children. `has_states`: some list `state_tensors()`, which hold what earlier tokens left and no rows of theirs. `windows`: some
/// list rows of tokens and see the last ones of them only (`static constexpr bool has_window = true`). `sees_all`: some list rows of tokens and see all.
template <class Layer>
struct cached_traits {
  static constexpr bool has_states = detail::keeps_of_tokens<Layer>::has_states;
  static constexpr bool windows = detail::keeps_of_tokens<Layer>::windows;
  static constexpr bool sees_all = detail::keeps_of_tokens<Layer>::sees_all;
};

}  // namespace heddle::inline v0::model::layers

// heddle/model/layers/cached_traits.hpp: traits of layers that keep earlier tokens.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/layers/block_kinds.hpp>
#include <heddle/model/layers/description.hpp>

#include <cstdint>
#include <string>

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
  static constexpr bool takes_split_rows = (keeps_of_tokens<C>::takes_split_rows && ...);
};
template <class Layer>
struct keeps_of_tokens {
  using children = children_keep<children_of<Layer>>;
  static constexpr bool has_window = requires { requires Layer::has_window; };
  static constexpr bool has_states = requires(const Layer& l) { l.state_tensors(); } || children::has_states;
  static constexpr bool windows = has_window || children::windows;
  static constexpr bool sees_all = (cached_of<Layer>::size > 0 && !has_window) || children::sees_all;
  static constexpr bool reads_tokens = cached_of<Layer>::size > 0 || requires(const Layer& l) { l.state_tensors(); };
  static constexpr bool takes_split_rows =
      (!reads_tokens || requires { requires Layer::caches_split_rows; }) && children::takes_split_rows;
};
[[noreturn]] inline void refuse_window(std::int64_t window, std::int64_t other) {
  throw config_error(
      "heddle: layers of a model that see the last tokens only should all see the same number, at least 1; got " +
      (other < 0 ? std::string("none") : std::to_string(window) + " and " + std::to_string(other)));
}
}  // namespace detail

/// Of a layer with its children. `has_states`: some list `state_tensors()`, which hold what earlier tokens left and no rows of theirs. `windows`: some
/// list rows of tokens and see the last ones of them only (`static constexpr bool has_window = true`). `sees_all`: some list rows of tokens and see all.
/// `takes_split_rows`: all that list some take a part of the rows of a step and gather the others (`static constexpr bool caches_split_rows = true`).
template <class Layer>
struct cached_traits {
  static constexpr bool has_states = detail::keeps_of_tokens<Layer>::has_states;
  static constexpr bool windows = detail::keeps_of_tokens<Layer>::windows;
  static constexpr bool sees_all = detail::keeps_of_tokens<Layer>::sees_all;
  static constexpr bool takes_split_rows = detail::keeps_of_tokens<Layer>::takes_split_rows;
};

/// Tokens that rows of a layer, or of its children, see of their sequence, themselves among them, where they see the last ones only; 0: none of them does.
/// Errors: `config_error` where two layers have other windows, or one below 1.
template <class Layer>
std::int64_t window_of(const Layer& layer) {
  std::int64_t window = 0;
  if constexpr (cached_traits<Layer>::windows) {
    const auto take = [&](std::int64_t other) {
      if (other == 0) return;
      if (other < 0 || (window != 0 && other != window)) detail::refuse_window(window, other);
      window = other;
    };
    if constexpr (detail::keeps_of_tokens<Layer>::has_window) take(layer.window > 0 ? layer.window : -1);
    layer.children().each([&](auto, const auto& child) { take(window_of(child)); });
  }
  return window;
}

/// The same of the blocks of a model, of one kind or two, together `Blocks`.
template <class Blocks, class Description>
std::int64_t window_of_blocks([[maybe_unused]] const Description& of) {
  if constexpr (!cached_traits<Blocks>::windows)
    return 0;
  else if constexpr (requires { of.other; })
    return window_of(either_block<decltype(of.block), decltype(of.other)>{of.block, of.other});
  else
    return window_of(of.block);
}

}  // namespace heddle::inline v0::model::layers

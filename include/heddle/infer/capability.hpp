// heddle/infer/capability.hpp: capabilities of caches and runners, as types that are checked.
#pragma once

#include <heddle/core/type_list.hpp>

#include <type_traits>

namespace heddle::inline v0::infer {

/// Rows at the end of a sequence can be taken back: the next rows overwrite them. Speculative decoding needs it.
struct truncate {};
/// Rows of a step may form a tree, and rows of the cache can be moved. Speculation with trees needs it.
struct tree_rows {};
/// Several sequences can share blocks of their beginnings.
struct share_blocks {};
/// The logits of a row are those of the token behind it, whatever comes later. What decodes tokens one behind the other needs it.
struct next_token {};
/// Rows of a step see all keys of their sequence, also those behind them (`step::everywhere`). Decoding in windows needs it.
struct window_rows {};
/// Beside `window_rows`: which tokens the model's rows are made to see, such as `model::everything`. A window of another reach would be computed wrongly.
template <class Reach>
struct rows_see {};
/// Rows see a limited number of tokens before theirs (`step_limits::window`), so that blocks of earlier ones can be given back.
struct bounded_reach {};
/// Keys and values of a token depend on the tokens up to it and on nothing else. Sharing of prefixes needs it.
struct causal_rows {};
/// States that layers keep of sequences can be copied (`step::state_copies`), so that an engine with `restore` takes rows back, and finds beginnings again.
struct copy_states {};
/// Sequences have slots that can be moved together into one window. Fused steps over slots need it.
struct slot_window_moves {};

/// A list of capabilities.
template <class... Cs>
struct capabilities {
  template <class C>
  static constexpr bool has = contains<C, Cs...>;
};

namespace detail {
// What a runner alone offers, whatever the cache is.
template <class C>
inline constexpr bool is_of_runner = std::is_same_v<C, next_token> || std::is_same_v<C, window_rows>;
template <class Reach>
inline constexpr bool is_of_runner<rows_see<Reach>> = true;
template <class Needs, class Offered>
struct all_offered;
template <class... Ns, class Offered>
struct all_offered<capabilities<Ns...>, Offered> {
  static constexpr bool value = (Offered::template has<Ns> && ...);
};
template <class P>
using needs_member = typename P::needs;
template <class P>
using needs_of = member_or<capabilities<>, needs_member, P>;
template <class R>
using capabilities_member = typename R::capabilities;
template <class R>
using capabilities_of = member_or<capabilities<truncate, causal_rows, next_token>, capabilities_member, R>;
}  // namespace detail

/// What a runner offers: its member type `capabilities`, or, without one, what a causal model with rows of keys and values does.
template <class Runner>
using runner_capabilities = typename detail::capabilities_of<Runner>::type;

}  // namespace heddle::inline v0::infer

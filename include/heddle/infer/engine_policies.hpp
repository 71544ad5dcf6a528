// heddle/infer/engine_policies.hpp: chooses an engine's policies, and checks that they fit.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/infer/batching.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/prefix_shared.hpp>
#include <heddle/infer/slotted.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/temporal_fusion.hpp>

#include <type_traits>

namespace heddle::inline v0::infer {

struct state_kind {};  ///< kind of policies about the states that layers keep of sequences

/// States go on from row to row, and are lost where tokens are taken back.
struct states_go_on {
  using kind = state_kind;
};
/// States of layers are saved and restored (`copy_states`): proposals that are not drawn are taken back by the state before them, the accepted ones are computed again;
/// prompts that begin alike begin with a snapshot of the state there (`prefix_shared`). A sequence whose tokens are proposed takes two of the runner's states; snapshots are in
/// those that no sequence needs.
struct restore {
  using kind = state_kind;
};

namespace detail {

template <class P>
concept state_policy = std::is_same_v<P, restore> || std::is_same_v<P, states_go_on>;
struct engine_policy_set : policy_set<engine_policy_set> {
  template <class P>
  static constexpr bool takes = batching_policy<P> || cache_policy<P> || decoding_policy<P> || state_policy<P>;

  template <class P>
  static constexpr void refuse_unknown() {
    static_assert(
        takes<P>,
        "heddle: engine<Runner, ...> does not know this policy; it takes a batching policy (static_batching<N>, "
        "continuous_batching, chunked_prefill<Budget>, temporal_fusion<Slots>), a cache (contiguous, paged, "
        "prefix_shared, slotted, windowed) and a way to decode (one_token, ngram_speculation<...>, "
        "draft_speculation<Draft>, "
        "medusa_speculation<Heads>, falcon_speculation<Drafter>, diffusion<...>) and restore, or types with the same "
        "members");
  }
  template <class... Ps>
  static constexpr void refuse_doubled() {
    static_assert((only_policy_of_its_kind<Ps, Ps...> && ...),
                  "heddle: engine<Runner, ...> got two policies of one kind; keep one of them");
  }
};

// What a runner alone offers.
template <class Cache>
struct cache_beside_runner {
  template <class C>
  static constexpr bool has = Cache::capabilities::template has<C> || is_of_runner<C>;
};

// What a runner offers to an engine that restores its states.
template <class Runner, bool Restores>
struct offered_by {
  template <class C>
  static constexpr bool has =
      Runner::template has<C> || (Restores && Runner::template has<copy_states> &&
                                  (std::is_same_v<C, truncate> || std::is_same_v<C, causal_rows>));
};
template <bool Ok, class Cache>
inline constexpr bool windows_are_whole = Ok;
template <class Runner>
inline constexpr bool offers_streams = stream_runner<Runner>;
template <class Decoding, class Runner>
inline constexpr bool streams_are_as_read = true;
template <class Decoding, class Runner>
  requires requires { typename Decoding::scalar; }
inline constexpr bool streams_are_as_read<Decoding, Runner> =
    std::is_same_v<typename Decoding::scalar, typename Runner::scalar>;

template <class Batching>
inline constexpr bool needs_slots = std::is_same_v<typename needs_of<Batching>::type, capabilities<slot_window_moves>>;

template <class Runner, class... Ps>
struct chosen_engine_policies {
  using batching = v0::select_policy<batching_kind, chunked_prefill<>, Ps...>;
  using cache = v0::select_policy<cache_kind, std::conditional_t<needs_slots<batching>, slotted, paged>, Ps...>;
  using decoding = v0::select_policy<decoding_kind, one_token, Ps...>;
  static constexpr bool restores = std::is_same_v<v0::select_policy<state_kind, states_go_on, Ps...>, restore>;
  using runner = offered_by<runner_capabilities<Runner>, restores>;

  static constexpr bool fits() {
    if constexpr (!all_offered<typename needs_of<batching>::type, typename cache::capabilities>::value) {
      static_assert(all_offered<typename needs_of<batching>::type, typename cache::capabilities>::value,
                    "heddle: this batching policy needs a capability that the cache policy does not offer; "
                    "temporal_fusion needs slot_window_moves: slots that can be moved together, as those of slotted");
      return false;
    } else if constexpr (!all_offered<typename cache::needs, runner>::value) {
      static_assert(all_offered<typename cache::needs, runner>::value,
                    "heddle: this cache policy needs a capability that the runner does not offer; prefix_shared needs "
                    "causal_rows: "
                    "keys and values that depend on the tokens up to theirs alone, and restore where layers keep "
                    "states; windowed needs bounded_reach: rows "
                    "that see a limited number of tokens");
      return false;
    } else if constexpr (!all_offered<typename decoding::needs, runner>::value) {
      static_assert(
          all_offered<typename decoding::needs, runner>::value,
          "heddle: this decoding policy needs a capability that the runner does not offer; speculation needs truncate: "
          "rows of rejected tokens that can be overwritten, or states that restore brings back; trees of proposals "
          "need tree_rows; one token behind the "
          "other needs next_token: a model whose rows see no later ones; diffusion needs window_rows and "
          "rows_see<Reach>: "
          "a masked model of that reach");
      return false;
    } else if constexpr (!all_offered<typename decoding::needs, cache_beside_runner<cache>>::value) {
      static_assert(
          all_offered<typename decoding::needs, cache_beside_runner<cache>>::value,
          "heddle: this decoding policy needs a capability that the cache policy does not offer; speculation needs "
          "truncate: rows at the end of a sequence that can be taken back");
      return false;
    } else if constexpr (decodes_windows<decoding> && (cache::capabilities::template has<share_blocks> ||
                                                       cache::capabilities::template has<slot_window_moves>)) {
      static_assert(
          windows_are_whole<!decodes_windows<decoding>, cache>,
          "heddle: diffusion computes rows of a text again as its masks become tokens: take the cache paged or "
          "contiguous, whose blocks no other text has and no step moves");
      return false;
    } else if constexpr (detail::reads_streams<decoding> && !offers_streams<Runner>) {
      static_assert(offers_streams<Runner>,
                    "heddle: this decoding policy reads the residual stream of the model, which the runner does not "
                    "keep: it needs a member streams() (stream_runner)");
      return false;
    } else if constexpr (detail::reads_streams<decoding>) {
      static_assert(streams_are_as_read<decoding, Runner>,
                    "heddle: this decoding policy reads residual streams of another element type than the runner's; "
                    "for those of 16 bits give the engine a widened_runner of the runner, whose streams are of float");
      return streams_are_as_read<decoding, Runner>;
    } else {
      return true;
    }
  }
};

}  // namespace detail

/// The policies of an engine: members `batching`, `cache` and `decoding`. What is left out is `chunked_prefill<>`, `paged` (`slotted` for `temporal_fusion`) and `one_token`.
template <class Runner, class... Policies>
struct engine_policies
    : decltype(detail::engine_policy_set::choose<detail::chosen_engine_policies<Runner, Policies...>,
                                                 detail::chosen_engine_policies<void>, Policies...>())::type {};

}  // namespace heddle::inline v0::infer

// heddle/rl/pipeline.hpp: a pipeline of reinforcement learning as a type.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/rl/completion.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/objective.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0::rl {

struct placement_kind {};  ///< kind of policies that say which ranks train and which generate
struct step_rule_kind {};  ///< kind of policies that say when weights are sent, and how far generators may be ahead
struct guard_kind {};      ///< kind of policies that say which answers are given up
struct behaviour_kind {};  ///< kind of policies that say how objectives treat what other weights drew

/// Placement: every rank trains and generates, in turn.
struct colocated {
  using kind = placement_kind;
  static constexpr void set(flow& f) noexcept { f.apart = false; }
};
/// Placement: the first ranks train, the others generate at the same time.
struct split {
  using kind = placement_kind;
  static constexpr void set(flow& f) noexcept { f.apart = true; }
};

/// A number of batches, such as `eta<1, 2>`: half of one.
template <std::int64_t Numerator, std::int64_t Denominator = 1>
struct eta {
  static_assert(Numerator >= 0 && Denominator > 0, "heddle: rl::eta<a, b> is a fraction of at least 0");
  static constexpr std::int64_t numerator = Numerator, denominator = Denominator;
};

namespace load {
/// All generators take new weights at one meeting.
struct together {
  static constexpr std::int64_t rolling = 0;
  static constexpr bool delayed = false;
};
/// `R` generators take them at a meeting, in turn: less memory and fewer messages at once. All ranks attend.
template <int R>
struct rolling_by {
  static_assert(R > 0, "heddle: rl::load::rolling_by<R>: at least one generator takes weights at a meeting");
  static constexpr std::int64_t rolling = R;
  static constexpr bool delayed = false;
};
/// Generators get weights as soon as a step is done, between two decoding steps, in a second memory of theirs. They take
/// them when the answers of their window are complete: no sending waits for the slowest answer, and no answer has two
/// versions. `R` as for `rolling_by`; 0: all.
template <int R = 0>
struct beside {
  static_assert(R >= 0, "heddle: rl::load::beside<R>: R generators get weights at a meeting, or with 0 all");
  static constexpr std::int64_t rolling = R;
  static constexpr bool delayed = true;
};
}  // namespace load

/// Step rule: a version writes the batch that the next step takes, and nothing else.
struct sync {
  using kind = step_rule_kind;
  static constexpr void set(flow& f) noexcept { f.ahead = 0; }
};
/// Step rule: a version writes the batch of the next step but `Eta`, weights are sent after each `Updates` steps, and
/// answers begin and end with one version, but for those that a save kept unfinished. `bounded_stale<eta<0>>` is `sync`. Generators fill their window before they
/// take weights, so that lags do not depend on who is faster: a sending waits for the slowest, but with `load::beside`.
/// Source: AsyncFlow, arXiv:2507.01663.
template <class Eta, int Updates = 1, class Load = load::together>
struct bounded_stale {
  static_assert(Updates > 0, "heddle: rl::bounded_stale<Eta, Updates>: weights are sent after at least one step");
  using kind = step_rule_kind;
  static constexpr void set(flow& f) noexcept {
    f.ahead = Eta::numerator, f.of = Eta::denominator, f.updates = Updates, f.rolling = Load::rolling;
    f.delayed = Load::delayed;
  }
};
/// Step rule: the next batch is written while the trainer steps on the last one.
using one_step_off = bounded_stale<eta<1>>;
/// Step rule: weights replace others between two decoding steps, inside answers, as soon as a step is done. Generators
/// are at most `Ahead` batches ahead. Keys and values of what was written stay, or are computed again.
/// Source: PipelineRL, arXiv:2509.19128.
template <infer::kv Cache = infer::kv::keep, class Ahead = eta<1>>
struct in_flight {
  using kind = step_rule_kind;
  static constexpr void set(flow& f) noexcept {
    f.in_flight = true, f.cache = Cache, f.ahead = Ahead::numerator, f.of = Ahead::denominator;
  }
};

/// Guard: no samples are given up.
struct no_guard {
  using kind = guard_kind;
  static constexpr void set(flow&) noexcept {}
};
/// Guard: where the effective sample size of a step was below `Numerator` / `Denominator` of its tokens, groups that
/// older versions wrote are given up, so that the next step is of the newest only. What is given up leaves the window,
/// and new groups begin in its place: nothing waits for ever.
template <int Numerator, int Denominator>
struct ess_below {
  static_assert(Numerator >= 0 && Numerator <= Denominator && Denominator > 0,
                "heddle: rl::ess_below<a, b> is a share from 0 to 1");
  using kind = guard_kind;
  static constexpr void set(flow& f) noexcept { f.least_share = double{Numerator} / Denominator; }
};
/// Guard: groups with a token more than `Versions` old are given up, and leave the window likewise.
template <int Versions>
struct max_age {
  static_assert(Versions >= 0, "heddle: rl::max_age<Versions> is at least 0");
  using kind = guard_kind;
  static constexpr void set(flow& f) noexcept { f.most_age = Versions; }
};

/// How objectives treat what other weights drew: each token has the log-probability of what drew it.
struct behaviour_weights {
  using kind = behaviour_kind;
};
/// They are used as if the present weights had drawn them, for an objective without weights.
struct keep_as_is {
  using kind = behaviour_kind;
};

namespace detail {
struct pipeline_policies
    : policy_set<pipeline_policies, placement_kind, step_rule_kind, completion_kind, guard_kind, behaviour_kind> {
  template <class P>
  static constexpr void refuse_unknown() {
    static_assert(takes<P>,
                  "heddle: rl::pipeline<...> does not know this policy; it takes a placement (colocated, split), a "
                  "step rule (sync, one_step_off, bounded_stale<...>, in_flight<...>), a completion (wait_all, "
                  "partial<Over>, slots<H>), a guard (ess_below<a, b>, max_age<N>) and keep_as_is");
  }
  template <class... Ps>
  static constexpr void refuse_doubled() {
    static_assert((only_policy_of_its_kind<Ps, Ps...> && ...),
                  "heddle: rl::pipeline<...> got two policies of one kind; keep one of them");
  }
};
template <class Placement, class StepRule>
inline constexpr bool step_rule_has_ranks = true;
template <infer::kv Cache, class Ahead>
inline constexpr bool step_rule_has_ranks<colocated, in_flight<Cache, Ahead>> = false;
template <class Placement, class StepRule>
inline constexpr bool step_rule_has_time = true;
template <class Eta, int Updates, class Load>
inline constexpr bool step_rule_has_time<colocated, bounded_stale<Eta, Updates, Load>> = Eta::numerator == 0;

template <class... Ps>
struct chosen_pipeline {
  using placement = v0::select_policy<placement_kind, colocated, Ps...>;
  using step_rule = v0::select_policy<step_rule_kind, sync, Ps...>;
  using completion = v0::select_policy<completion_kind, wait_all, Ps...>;
  using guard = v0::select_policy<guard_kind, no_guard, Ps...>;
  using behaviour = v0::select_policy<behaviour_kind, behaviour_weights, Ps...>;

  static constexpr bool fits() {
    static_assert(step_rule_has_ranks<placement, step_rule>,
                  "heddle: rl::in_flight replaces weights while answers are written, so that generators need ranks of "
                  "their own: take split in the place of colocated");
    if constexpr (step_rule_has_ranks<placement, step_rule>)
      static_assert(
          step_rule_has_time<placement, step_rule>,
          "heddle: rl::bounded_stale and one_step_off write batches while the trainer steps, so that generators "
          "need ranks of their own: take split in the place of colocated");
    return step_rule_has_ranks<placement, step_rule> && step_rule_has_time<placement, step_rule>;
  }
};
template <class Chosen>
constexpr rl::flow flow_of() {
  rl::flow f;
  Chosen::placement::set(f);
  Chosen::step_rule::set(f);
  constexpr completion_rule completion = Chosen::completion::rule();
  f.over = completion.over > 1 ? completion.over : 1, f.slots = completion.slots;
  Chosen::guard::set(f);
  f.as_is = std::is_same_v<typename Chosen::behaviour, keep_as_is>;
  return f;
}

template <class Objective, bool MixesVersions, bool AsIs>
inline constexpr bool objective_knows_what_drew = !MixesVersions || AsIs || reads_behaviour<Objective>;
}  // namespace detail

/// A pipeline of policies in any order, at most one of a kind: a placement, a step rule, a completion, a guard. What is
/// left out is `colocated`, `sync`, `wait_all` and no guard.
template <class... Policies>
struct pipeline {
  using chosen = typename decltype(detail::pipeline_policies::choose<detail::chosen_pipeline<Policies...>,
                                                                     detail::chosen_pipeline<>, Policies...>())::type;
  /// What it decides, as values.
  static constexpr rl::flow flow = detail::flow_of<chosen>();

  /// Whether an objective fits: where answers are written with several versions of the weights, it must read what drew a
  /// token (`reads_behaviour`), unless the pipeline has `keep_as_is`.
  template <class Objective>
  static constexpr bool takes() {
    constexpr bool mixes = flow.overtakes();
    static_assert(detail::objective_knows_what_drew<Objective, mixes, flow.as_is>,
                  "heddle: in_flight and partial write one answer with several versions of the weights, and this "
                  "objective does not read the log-probability of what drew a token: take one with importance weights "
                  "(reinforce, aipo, ppo; reads_behaviour in your own), or add keep_as_is to the pipeline");
    return detail::objective_knows_what_drew<Objective, mixes, flow.as_is>;
  }
};

/// HybridFlow (verl): all ranks train and generate, in turn, on meshes of their own.
/// Source: Sheng et al. 2024, arXiv:2409.19256.
using hybridflow = pipeline<colocated, sync, wait_all>;
/// LlamaRL: generators on ranks of their own write the next batch while the trainer steps, for `aipo`.
/// Source: Wu et al. 2025, arXiv:2505.24034.
using llamarl = pipeline<split, one_step_off, wait_all>;
/// AsyncFlow: as that, with generators that get weights in turn, beside those in use (delayed and rolling loads).
/// Source: arXiv:2507.01663.
using asyncflow = pipeline<split, bounded_stale<eta<1>, 1, load::beside<1>>, wait_all>;
/// APRIL: twice the groups are begun, and what a step does not take is gone on with in the next round.
/// Source: Zhou et al. 2025, arXiv:2509.18521.
using april = pipeline<colocated, sync, partial<2>>;
/// PipelineRL: 64 sequences are always under way, and weights are replaced inside them after each step.
/// Source: Piche et al. 2025, arXiv:2509.19128.
using pipelinerl = pipeline<split, in_flight<infer::kv::keep, eta<1>>, slots<64>, ess_below<6, 10>>;

/// A published system by its name: "hybridflow", "llamarl", "asyncflow", "april", "pipelinerl".
/// Errors: `config_error` for another name.
inline flow flow_named(std::string_view name) {
  if (name == "hybridflow") return hybridflow::flow;
  if (name == "llamarl") return llamarl::flow;
  if (name == "asyncflow") return asyncflow::flow;
  if (name == "april") return april::flow;
  if (name == "pipelinerl") return pipelinerl::flow;
  throw config_error("heddle: rl: there is no pipeline \"" + std::string(name) +
                     "\"; there are hybridflow, llamarl, asyncflow, april, pipelinerl");
}

}  // namespace heddle::inline v0::rl

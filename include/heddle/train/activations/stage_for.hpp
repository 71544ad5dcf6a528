// heddle/train/activations/stage_for.hpp: the stage type for a policy of saved activations.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/train/activations/store.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::train::detail {

// The model's stage for this policy.
template <class Model, class World, class Backend, class Activations>
struct stage_with {
  static constexpr bool value = requires { typename Model::template stage<World, Backend, Activations>; };
};
template <class Model, class World, class Backend, class Activations>
constexpr auto select_stage() {
  if constexpr (std::is_same_v<Activations, activations::keep>) {
    return std::type_identity<typename Model::template stage<World, Backend>>{};
  } else if constexpr (!stage_with<Model, World, Backend, Activations>::value) {
    static_assert(
        stage_with<Model, World, Backend, Activations>::value,
        "heddle: this model's stage keeps its saved activations itself: it takes no policy for them; give it a "
        "third parameter (model::layer_memory), or leave the policy out");
    return std::type_identity<typename Model::template stage<World, Backend>>{};
  } else {
    return std::type_identity<typename Model::template stage<World, Backend, Activations>>{};
  }
}
// A model whose stage takes the pipeline's axis is told it.
template <class Model, class World, class Backend, class Activations, class Pipeline>
constexpr auto select_stage_along() {
  if constexpr (requires { typename Model::template stage<World, Backend, Activations, Pipeline>; })
    return std::type_identity<typename Model::template stage<World, Backend, Activations, Pipeline>>{};
  else
    return select_stage<Model, World, Backend, Activations>();
}
template <class Model, class World, class Backend, class Activations, class Pipeline = pp>
using stage_for = typename decltype(select_stage_along<Model, World, Backend, Activations, Pipeline>())::type;

// A policy that brings activations back is told before a microbatch's backward: by RELOAD in the table.
template <class Activations>
inline constexpr bool reloads = requires { requires Activations::reloads; };
// Whether one that is told at run time does so with these options; `recompute` has it in `kept`.
template <class Activations, class Options>
constexpr bool reloads_with(const Options& options) {
  if constexpr (requires { Activations::reloads_with(options.offload); })
    return Activations::reloads_with(options.offload);
  else if constexpr (requires { Activations::kept::reloads_with(options.offload); })
    return Activations::kept::reloads_with(options.offload);
  else
    return reloads<Activations>;
}
template <class Activations, class When, class Mesh>  // the axis of the pipeline is pp
constexpr auto lower_for_activations(const When& when, const Mesh& mesh, [[maybe_unused]] bool reloads_now) {
  if constexpr (!reloads<Activations>) {
    return schedule::plan_for(when, mesh);
  } else {
    if (!reloads_now) return schedule::make_plan(schedule::make_table(when, mesh.template extent_or_one<pp>()));
    const schedule::action_table table = schedule::make_table(when, mesh.template extent_or_one<pp>());
    schedule::require_table(table, schedule::transfers::buffered);
    if (table.view().has(schedule::action_kind::offload)) return schedule::make_plan(table);
    return schedule::make_plan(
        schedule::lower(table, schedule::passes::merge_backward{}, schedule::passes::offload{.ahead = 1}));
  }
}

// Whether the backward of every microbatch of this stage comes directly behind its forward: its last layer's
// activations stay. Where it is so for some only, the others' leave.
inline bool backwards_follow(std::span<const schedule::action> list, int stage) noexcept {
  using schedule::action_kind;
  const schedule::action* forward = nullptr;
  bool any = false;
  for (const schedule::action& a : list) {
    if (!schedule::is_compute(a.kind)) continue;
    const bool backward = a.kind == action_kind::backward || a.kind == action_kind::backward_input;
    if (forward != nullptr && !(backward && a.stage == stage && a.microbatch == forward->microbatch)) return false;
    forward = a.kind == action_kind::forward && a.stage == stage ? &a : nullptr;
    any = any || forward != nullptr;
  }
  return any && forward == nullptr;
}

template <class Stage, class Config>
model::own_activations named_by_tags(const Config& config) {
  if constexpr (requires { Stage::named_by_tags(config); })
    return Stage::named_by_tags(config);
  else
    return {};
}
template <class Stage, class Options>
auto settings_of(const Options& options, std::span<const schedule::action> list, int stage) {
  using Settings = typename Stage::layers_memory::settings;
  Settings s{};
  if constexpr (std::derived_from<Settings, activations::offload_settings>) {
    static_cast<activations::offload_settings&>(s) = options.offload;
    s.keep_last = s.keep_last || backwards_follow(list, stage);
  }
  if constexpr (requires { s.again; })  // `of_stage::takes_recompute`, of the settings
    if (!options.recompute.empty())
      s.again = model::parse_recompute(options.recompute, named_by_tags<Stage>(options.model));
  return s;
}

// A stage, told what it takes.
template <class Stage, class Options, class World, class Backend, class Layers>
Stage make_stage(const Options& options, World& world, Backend& backend, const Layers& layers, int slots,
                 std::int64_t max_samples, int deferred, Stage* lender, std::span<const schedule::action> list,
                 int index) {
  const auto& config = options.model;
  if constexpr (!model::of_stage::takes_recompute<Stage>)
    if (!options.recompute.empty())
      throw config_error("heddle: options.recompute is \"" + options.recompute +
                         "\", but this strategy does not recompute; give it activations::recompute<>");
  if constexpr (model::of_stage::takes_settings<Stage>)
    return Stage(config, world, backend, layers, slots, max_samples, deferred, lender,
                 settings_of<Stage>(options, list, index));
  else if constexpr (model::of_stage::takes_lender<Stage, decltype(config), World&, Backend&, const Layers&, int,
                                                   std::int64_t, int>)
    return Stage(config, world, backend, layers, slots, max_samples, deferred, lender);
  else
    return Stage(config, world, backend, layers, slots, max_samples, deferred);
}

}  // namespace heddle::inline v0::train::detail

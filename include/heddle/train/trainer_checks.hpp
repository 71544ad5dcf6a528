// heddle/train/trainer_checks.hpp: checks of a trainer's world and of its schedule's table.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/stage_parts.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::train {

namespace detail {
// Refuses the world of a trainer of another one.
template <class World, class Other>
World& world_of_trainer() {
  constexpr bool same = std::is_same_v<World, Other>;
  static_assert(same,
                "heddle: this trainer is for a world of another type than it is given; "
                "write train::trainer<Model, Strategy, decltype(world)>");
  return *static_cast<World*>(nullptr);
}

// What a trainer asks of its schedule beyond being valid.
inline schedule::table_view trained(schedule::table_view t) {
  if (t.forward_only())
    throw schedule_error("heddle: the schedule has no backwards: it is for inference, a trainer needs one that trains");
  return t;
}

// Carries the stage into the compiler's message.
template <bool Ok, class Stage>
struct can_step_first {
  static constexpr bool value = Ok;
};
// With `post_validation` a step begins with forwards while the gradients of the step before are still needed.
template <class Stage, bool StepsFirst>
constexpr bool steps_in_order() {
  if constexpr (StepsFirst && model::of_stage::adds_gradients_in_forward<Stage>)
    static_assert(can_step_first<!StepsFirst, Stage>::value,
                  "heddle: this stage adds gradients as it runs forward (that of three_functions does: the loss adds "
                  "them), so a step cannot run forward before the step before has used its own; leave post_validation "
                  "out");
  else
    static_assert(can_step_first<!(StepsFirst && model::of_stage::counts_targets<Stage>), Stage>::value,
                  "heddle: a stage with counted_targets() counts from zero_gradients() on, which post_validation calls "
                  "behind the first forwards of a step; leave post_validation out");
  return true;
}

// The most microbatches of a stage that wait between I and W.
inline int most_deferred(std::span<const schedule::action> list, int stage) {
  int waiting = 0, most = 0;
  for (const schedule::action& a : list) {
    if (a.stage != stage) continue;
    if (a.kind == schedule::action_kind::backward_input) most = (std::max)(most, ++waiting);
    if (a.kind == schedule::action_kind::backward_weight) --waiting;
  }
  return most;
}
// What the gradients of a part are multiplied with; they are sums over the samples that visited it, divided by all
// samples of the step, which are cut into `shares`.
template <class Scale>
double gradient_factor(schedule::table_view t, const stage_parts& parts, int part, std::int64_t samples, int shares) {
  if (!t.has_paths()) return 1;
  std::int64_t visited = 0;
  for (int d = 0; d < shares; ++d) {
    const balanced_split cut{balanced_split{samples, shares}.size(d), t.microbatches()};
    for (const int s : parts.stages_of(part))
      for (int i = 0; i < t.microbatches(); ++i)
        if (t.handles(s, i)) visited += cut.size(i);
  }
  return static_cast<double>(samples) / Scale::divisor(static_cast<int>(visited), static_cast<int>(samples));
}

inline bool has_pairs(std::span<const schedule::action> list) {
  return std::any_of(list.begin(), list.end(), [](const schedule::action& a) { return a.overlaps_next; });
}

}  // namespace detail

}  // namespace heddle::inline v0::train

// heddle/train/trainer_checks.hpp: what a trainer asks of its mesh, its model's stages and its schedule's table.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/stage_parts.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::train {

namespace detail {
// Losses and norms are summed over the world: ranks along any other axis would count the same samples again.
template <class Mesh>
struct trains_along_dp_pp_tp {
  template <class... Tags>
  static constexpr bool known(type_list<Tags...>) {
    return ((std::is_same_v<Tags, dp> || std::is_same_v<Tags, pp> || std::is_same_v<Tags, tp>) && ...);
  }
  static constexpr bool value = known(typename Mesh::tags{});
};

// What a stage says of its flat buffers and its loss must be what a step does: one reduction of all gradients over dp,
// and a loss that is added up over dp and counted once along tp.
template <class Stage>
struct learns_from_sums_over_dp {
  using weights = typename Stage::flat_weights;
  static constexpr bool gradients = [] {
    if constexpr (dual<weights>::template is_partial_on<dp>)
      return std::is_same_v<reduced<dual<weights>, dp>, weights>;
    else
      return false;
  }();
  static constexpr bool loss = loss_layout<typename Stage::loss> && !Stage::loss::template is_identical_on<dp>;
};

// What a trainer asks of its schedule beyond being valid.
inline schedule::table_view trained(schedule::table_view t) {
  if (t.forward_only())
    throw schedule_error("heddle: the schedule has no backwards: it is for inference, a trainer needs one that trains");
  return t;
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
// samples of the step.
template <class Scale>
double gradient_factor(schedule::table_view t, const stage_parts& parts, int part, std::int64_t samples, int dp_size) {
  if (!t.has_paths()) return 1;
  std::int64_t visited = 0;
  for (int d = 0; d < dp_size; ++d) {
    const balanced_split cut{balanced_split{samples, dp_size}.size(d), t.microbatches()};
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

// heddle/plan/skippipe/rules.hpp: policies of stages that may be skipped or reordered.
#pragma once

#include <concepts>
#include <span>

namespace heddle::inline v0::plan {

/// The stages a way has visited so far, in order, and what follows from them. A visit below the frontier is a swap; its
/// distance is how far below.
struct path_view {
  std::span<const int> stages{};
  int frontier = -1;      ///< the highest stage visited; -1 before the first
  int swaps = 0;          ///< visits below the frontier
  int swap_distance = 0;  ///< the sum of their distances
};

/// `may_visit(path, stage)`: whether a way that has come so far may go on to this stage, which it has not visited yet.
template <class R>
concept path_rules = requires(const R r, const path_view& p, int stage) {
  { r.may_visit(p, stage) } -> std::same_as<bool>;
};

/// A visit is at most `Most` stages away from the frontier: at most `Most - 1` stages are skipped at a time.
template <int Most>
struct max_jump {
  static_assert(Most >= 1, "heddle: plan::max_jump<N>: N is at least 1, the next stage");
  static constexpr bool may_visit(const path_view& p, int stage) noexcept {
    const int jump = stage - p.frontier;
    return p.frontier < 0 || (jump <= Most && -jump <= Most);
  }
};

/// Swaps of a distance of at most `Longest`, of at most `Total` together, at most `Count` of them.
template <int Longest, int Total = Longest, int Count = Total>
struct swap_limit {
  static_assert(Longest >= 0 && Total >= 0 && Count >= 0, "heddle: plan::swap_limit<L, T, C>: limits are not negative");
  static constexpr bool may_visit(const path_view& p, int stage) noexcept {
    const int distance = p.frontier - stage;
    return distance <= 0 || (distance <= Longest && p.swap_distance + distance <= Total && p.swaps < Count);
  }
};

/// Stages in their order only.
using no_swaps = swap_limit<0, 0, 0>;

/// Stage 0 comes first, always: it embeds, and its node computes the loss.
struct keep_first_stage {
  static constexpr bool may_visit(const path_view& p, int stage) noexcept { return p.stages.empty() == (stage == 0); }
};

/// All of these rules, yours among them.
template <path_rules... Rules>
struct skip_rules {
  static constexpr bool may_visit(const path_view& p,
                                  int stage) noexcept(noexcept((Rules{}.may_visit(p, stage), ...))) {
    return (Rules{}.may_visit(p, stage) && ...);
  }
};

/// The rules SkipPipe was published with. Source: Blagoev et al. 2025, arXiv:2502.19913.
using published_rules = skip_rules<max_jump<4>, swap_limit<1, 2, 2>, keep_first_stage>;

/// The view of one stage more. Rules keep out what must not be visited.
constexpr path_view after_visit(path_view p, int stage, std::span<const int> stages) noexcept {
  p.stages = stages;
  if (stage < p.frontier) {
    ++p.swaps;
    p.swap_distance += p.frontier - stage;
  } else {
    p.frontier = stage;
  }
  return p;
}

/// Whether rules allow a whole way, given as its stages.
template <path_rules Rules>
constexpr bool allowed(std::span<const int> stages) {
  path_view p;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    for (std::size_t j = 0; j < k; ++j)
      if (stages[j] == stages[k]) return false;
    if (!Rules{}.may_visit(p, stages[k])) return false;
    p = after_visit(p, stages[k], stages.first(k + 1));
  }
  return true;
}

}  // namespace heddle::inline v0::plan

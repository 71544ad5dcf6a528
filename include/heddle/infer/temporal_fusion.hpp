// heddle/infer/temporal_fusion.hpp: fuses next tokens of all requests into one step.
#pragma once

#include <heddle/infer/batching.hpp>
#include <heddle/infer/capability.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::infer {

/// Slots within the window whose request has ended are filled by moving others there, with the fewest moves: a step has no row for nothing.
struct close_holes {};
/// Slots within the window whose request has ended have a row in each step, without a meaning, until a new request takes them or the window shrinks past them.
struct keep_holes {};

/// One persistent decoder: each step computes the next token of every request in flight, each at a position of its own, over slots of the cache that follow one
/// another. Sequences of a step are in the order of their slots. A request joins in the step in which its whole prompt is computed, at most `Slots` at once; others wait.
/// Its cache is `slotted`. `Holes`: `close_holes` or `keep_holes`.
/// Source: Flover, arXiv:2305.13484.
template <std::int64_t Slots = 32, class Holes = close_holes>
struct temporal_fusion {
  static_assert(Slots > 0,
                "heddle: temporal_fusion<Slots>: Slots is the number of requests in flight and must be positive");
  static_assert(std::is_same_v<Holes, close_holes> || std::is_same_v<Holes, keep_holes>,
                "heddle: temporal_fusion<Slots, Holes>: Holes is close_holes or keep_holes");
  using kind = batching_kind;
  using needs = capabilities<slot_window_moves>;
  static constexpr std::int64_t slots = Slots;
  static constexpr bool closes_holes = std::is_same_v<Holes, close_holes>;
  static constexpr std::int64_t rows_per_step(std::int64_t max_rows) noexcept { return max_rows; }
  static constexpr bool admits(std::int64_t running, std::int64_t, std::int64_t left) noexcept {
    return running < Slots && left > 0;
  }
  static constexpr std::int64_t prompt_rows(std::int64_t pending, std::int64_t left, bool first) noexcept {
    return continuous_batching::prompt_rows(pending, left, first);
  }
};

}  // namespace heddle::inline v0::infer

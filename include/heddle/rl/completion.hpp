// heddle/rl/completion.hpp: completion policies of rollouts: the end of a round.
#pragma once

#include <heddle/core/policy.hpp>

#include <concepts>
#include <cstdint>
#include <string>

namespace heddle::inline v0::rl {

struct completion_kind {};  ///< kind of policies that say when a round of a rollout is complete

/// A completion policy that is chosen at run time. `over`: as many groups are under way as `over` times those that a
/// round delivers, and what has not ended with the round is cancelled and goes on in the next; 0: groups start whenever
/// there is room, and nothing is cancelled. `slots`: at most so many answers are under way at once; 0: as many as have
/// room.
struct completion_rule {
  using kind = completion_kind;
  std::int64_t over = 1, slots = 0;
  constexpr completion_rule rule() const noexcept { return *this; }
  friend bool operator==(const completion_rule&, const completion_rule&) = default;
};

/// A policy with a `completion_rule`.
template <class C>
concept completion_policy = v0::policy<C> && std::same_as<typename C::kind, completion_kind> && requires(const C& c) {
  { c.rule() } -> std::same_as<completion_rule>;
};

/// A round starts as many groups as it delivers, and ends when all their answers have.
struct wait_all {
  using kind = completion_kind;
  static constexpr completion_rule rule() noexcept { return {1, 0}; }
};

/// A round starts `Over` times as many groups as it delivers. When enough have ended, the other answers are cancelled
/// and go on in the next round where they were; groups that have ended beyond that are delivered first. With `Over` 1
/// this is `wait_all`.
/// Source: Zhou et al. 2025, "APRIL", arXiv:2509.18521.
template <std::int64_t Over>
struct partial {
  static_assert(Over >= 1, "heddle: rl::partial<Over>: Over times as many groups are started as a round delivers: at least 1");
  using kind = completion_kind;
  static constexpr completion_rule rule() noexcept { return {Over, 0}; }
};

/// `H` answers are under way at every step: where one ends, the next begins, of the next group where need be. Nothing
/// is cancelled.
/// Source: Piche et al. 2025, "PipelineRL", arXiv:2509.19128, algorithm 2.
template <std::int64_t H>
struct slots {
  static_assert(H >= 1, "heddle: rl::slots<H>: H answers are under way at once: at least 1");
  using kind = completion_kind;
  static constexpr completion_rule rule() noexcept { return {0, H}; }
};

/// As a type is spelled: "wait_all", "partial<2>", "slots<64>".
inline std::string to_string(const completion_rule& c) {
  std::string text = c.over == 1 ? "wait_all" : c.over > 1 ? "partial<" + std::to_string(c.over) + ">" : "";
  if (c.slots > 0 || c.over == 0) text += (text.empty() ? "slots<" : ", slots<") + std::to_string(c.slots) + ">";
  return text;
}

}  // namespace heddle::inline v0::rl

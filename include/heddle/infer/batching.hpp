// heddle/infer/batching.hpp: batching policies: starts of requests, and prompt rows of a step.
#pragma once

#include <heddle/core/policy.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::infer {

struct batching_kind {};  ///< kind of policies that form the batch of a step

/// What a batching policy decides. Sequences that decode come first and have a row each, so at most `rows_per_step` requests run; the rows
/// that are left go to prompts, the oldest request first.
/// `rows_per_step(max_rows)`: most rows of a step, of the runner's `max_rows`.
/// `admits(running, begun, left)`: whether a waiting request may begin beside `running` others, of which `begun` began in this step, when
/// `left` rows are left.
/// `prompt_rows(pending, left, first)`: rows for a sequence with `pending` tokens that are not in the cache, of `left` in this step;
/// `first`: no prompt has rows in this step yet. It must not be 0 for the first one, so that no prompt waits for ever.
template <class B>
concept batching_policy =
    policy<B> && std::same_as<typename B::kind, batching_kind> && requires(std::int64_t n, bool first) {
      { B::rows_per_step(n) } -> std::same_as<std::int64_t>;
      { B::admits(n, n, n) } -> std::same_as<bool>;
      { B::prompt_rows(n, n, first) } -> std::same_as<std::int64_t>;
    };

/// Requests begin together, up to `N` of them, when no other runs. Their prompts are cut only where the runner's rows do not suffice.
template <std::int64_t N>
struct static_batching {
  static_assert(N > 0, "heddle: static_batching<N>: N is the number of requests of a batch and must be positive");
  using kind = batching_kind;
  static constexpr std::int64_t rows_per_step(std::int64_t max_rows) noexcept { return max_rows; }
  static constexpr bool admits(std::int64_t running, std::int64_t begun, std::int64_t) noexcept {
    return running == begun && running < N;
  }
  static constexpr std::int64_t prompt_rows(std::int64_t pending, std::int64_t left, bool) noexcept {
    return (std::min)(pending, left);
  }
};

/// Requests begin as soon as there is room, with their whole prompt in one step; only a prompt that is longer than the rows that the first
/// prompt of a step can have is cut. Source: Yu et al., "Orca", OSDI 2022, section 4.1 (scheduling by iteration).
struct continuous_batching {
  using kind = batching_kind;
  static constexpr std::int64_t rows_per_step(std::int64_t max_rows) noexcept { return max_rows; }
  static constexpr bool admits(std::int64_t, std::int64_t, std::int64_t left) noexcept { return left > 0; }
  static constexpr std::int64_t prompt_rows(std::int64_t pending, std::int64_t left, bool first) noexcept {
    return pending <= left ? pending : first ? left : 0;
  }
};

/// A step has at most `Budget` rows (0: as many as the runner allows); prompts are cut into chunks that fill what decoding leaves of
/// them, so that a long prompt does not hold up the answers of others.
/// Source: Agrawal et al., "Sarathi-Serve", OSDI 2024, section 4, arXiv:2403.02310.
template <std::int64_t Budget = 0>
struct chunked_prefill {
  static_assert(Budget >= 0,
                "heddle: chunked_prefill<Budget>: Budget is the number of rows of a step, or 0 for the runner's");
  using kind = batching_kind;
  static constexpr std::int64_t rows_per_step(std::int64_t max_rows) noexcept {
    return Budget == 0 ? max_rows : (std::min)(Budget, max_rows);
  }
  static constexpr bool admits(std::int64_t, std::int64_t, std::int64_t left) noexcept { return left > 0; }
  static constexpr std::int64_t prompt_rows(std::int64_t pending, std::int64_t left, bool) noexcept {
    return (std::min)(pending, left);
  }
};

}  // namespace heddle::inline v0::infer

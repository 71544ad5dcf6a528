// heddle/infer/diffusion_caches.hpp: caches of diffusion decoding, as rows to recompute.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>

namespace heddle::inline v0::infer {

/// Rows [first, end) of a sequence.
struct row_range {
  std::int64_t first = 0, end = 0;
  friend constexpr bool operator==(const row_range&, const row_range&) = default;
};

/// Which rows of a sequence are computed again in a step. `stores`: the rows of a finished block are computed once
/// more, and then no more: for models whose tokens see
/// no later block. Else `refreshes(answer, block)` says whether all are in step number `answer` of the answer, which is
/// number `block` of its block, both from 0 on; and
/// `window(block, total)` which are in other steps, at least those of the block.
template <class C>
concept diffusion_cache = requires(std::int64_t n, row_range r) {
  { C::stores } -> std::convertible_to<bool>;
  { C::refreshes(n, n) } -> std::same_as<bool>;
  { C::window(r, n) } -> std::same_as<row_range>;
};

/// Every step computes all rows.
struct none {
  static constexpr bool stores = false;
  static constexpr bool refreshes(std::int64_t, std::int64_t) noexcept { return true; }
  static constexpr row_range window(row_range, std::int64_t total) noexcept { return {0, total}; }
};
/// All rows in the first step of a block, then the block and all behind it. Source: Wu et al. 2025, Fast-dLLM,
/// arXiv:2505.22618, section 3.2.
struct prefix {
  static constexpr bool stores = false;
  static constexpr bool refreshes(std::int64_t, std::int64_t block) noexcept { return block == 0; }
  static constexpr row_range window(row_range block, std::int64_t total) noexcept { return {block.first, total}; }
};
/// All rows in the first step of a block, then the block. Source: as `prefix`.
struct dual {
  static constexpr bool stores = false;
  static constexpr bool refreshes(std::int64_t, std::int64_t block) noexcept { return block == 0; }
  static constexpr row_range window(row_range block, std::int64_t) noexcept { return block; }
};
/// All rows in the first step of a block and in the first `Warm` steps of the answer, else the block with `Before` rows
/// before it and `After` behind it.
/// Source: Ma et al. 2025, dInfer, arXiv:2510.08666.
template <std::int64_t Before = 16, std::int64_t After = 16, std::int64_t Warm = 4>
struct vicinity {
  static_assert(Before >= 0 && After >= 0 && Warm >= 0, "heddle: vicinity<Before, After, Warm> counts rows and steps");
  static constexpr bool stores = false;
  static constexpr bool refreshes(std::int64_t answer, std::int64_t block) noexcept {
    return answer < Warm || block == 0;
  }
  static constexpr row_range window(row_range block, std::int64_t total) noexcept {
    return {block.first > Before ? block.first - Before : 0, total - block.end > After ? block.end + After : total};
  }
};
/// Rows of a finished block are computed once more and kept: exact where tokens see their block and those before it,
/// and no other.
struct exact {
  static constexpr bool stores = true;
  static constexpr bool refreshes(std::int64_t, std::int64_t) noexcept { return false; }
  static constexpr row_range window(row_range block, std::int64_t) noexcept { return block; }
};

}  // namespace heddle::inline v0::infer

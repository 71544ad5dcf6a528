// heddle/infer/cache_extent.hpp: the size of a cache of keys and values.
#pragma once

#include <heddle/core/error.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace heddle::inline v0::infer {

/// How the elements of a block of `block_rows` tokens lie in each tensor of a cache: `by_token` [block_rows, heads, head_size], or `by_head` [heads, block_rows, head_size], where the heads of a
/// rank of another degree are one run. Source: Gyges, arXiv:2509.19729.
enum class cache_order : unsigned char { by_token, by_head };

/// The size of a cache. Units: `blocks` of `block_rows` tokens each; `states`: sequences whose states layers keep, of a model with such layers.
struct cache_extent {
  std::int64_t blocks = 0;
  std::int64_t block_rows = 16;
  std::int64_t states = 0;
  cache_order order = cache_order::by_token;
  friend bool operator==(const cache_extent&, const cache_extent&) = default;
};

/// Whose memory a stage's weights and cache lie in: its own, or its caller's, who lends it before the first step (`lend_weights`, `lend_cache`).
enum class stage_memory : bool { own, lent };

namespace detail {
inline void require_extent(const cache_extent& c, std::int64_t max_rows, bool has_states) {
  constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
  if (c.blocks < 1 || c.block_rows < 1 || c.blocks > most / c.block_rows)
    throw config_error(
        "heddle: a cache should have at least 1 block of at least 1 row and at most 2^31 - 1 rows, got " +
        std::to_string(c.blocks) + " blocks of " + std::to_string(c.block_rows) + " rows");
  if (c.states < 0 || c.states > most || (has_states && c.states < 1))
    throw config_error(
        "heddle: a cache of a model whose layers keep states should have room for 1 to 2^31 - 1 of them, "
        "got " +
        std::to_string(c.states));
  if (max_rows < 1 || max_rows > most)
    throw config_error("heddle: steps should have at most 1 to 2^31 - 1 rows, got " + std::to_string(max_rows));
}
}  // namespace detail

}  // namespace heddle::inline v0::infer

// heddle/infer/cache_extent.hpp: the size of a cache of keys and values.
#pragma once

#include <cstdint>

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

}  // namespace heddle::inline v0::infer

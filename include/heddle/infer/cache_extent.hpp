// heddle/infer/cache_extent.hpp: the size of a cache of keys and values.
#pragma once

#include <cstdint>

namespace heddle::inline v0::infer {

/// The size of a cache. Units: `blocks` of `block_rows` tokens each; `states`: sequences whose states layers keep, of a model with such layers.
struct cache_extent {
  std::int64_t blocks = 0;
  std::int64_t block_rows = 16;
  std::int64_t states = 0;
  friend bool operator==(const cache_extent&, const cache_extent&) = default;
};

}  // namespace heddle::inline v0::infer

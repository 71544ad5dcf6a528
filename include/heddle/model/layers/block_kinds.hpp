// heddle/model/layers/block_kinds.hpp: blocks of two kinds in one model, and where they are.
#pragma once

#include <heddle/model/layers/description.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

/// The second kind of block of a model whose blocks are all alike: a layer without parameters that is nowhere in it.
struct no_block {
  static constexpr const char* name = "";
  static constexpr list<> parameters() { return {}; }
  static constexpr list<> activations() { return {}; }
  static constexpr list<> children() { return {}; }
};

/// The layers of a model that have its second kind of block: the first `leading` ones, and, with a pattern that repeats after `every`, layers `first`, `first + every`, ...
struct other_layers {
  std::int64_t leading = 0;
  std::int64_t every = 0;
  std::int64_t first = 0;
  constexpr bool has(std::int64_t layer) const noexcept {
    return layer < leading || (every > 0 && layer % every == first);
  }
  friend constexpr bool operator==(const other_layers&, const other_layers&) = default;
};

/// What two kinds of block ask of a stage together: a type for traits of layers (`uses_routing`, `trains_all_of`, buckets of parameters), which
/// is never run.
template <class Block, class Other>
struct either_block {
  static constexpr const char* name = "";
  Block block;
  Other other;
  static constexpr list<> parameters() { return {}; }
  static constexpr list<> activations() { return {}; }
  constexpr auto children() const { return list(block, other); }
};
/// The same where there may be one kind: then it is that.
template <class Block, class Other>
using kinds_of_block = std::conditional_t<std::is_same_v<Other, no_block>, Block, either_block<Block, Other>>;

/// Calls `f(kind)` with that of a block: `block`, or `other` where the layer has the second kind. Without a second kind (`Two`) nothing is
/// asked.
template <bool Two, class Block, class Other, class F>
constexpr decltype(auto) with_kind(const other_layers& others, std::int64_t layer, Block& block,
                                   [[maybe_unused]] Other& other, F&& f) {
  if constexpr (Two)
    if (others.has(layer)) return f(other);
  return f(block);
}

}  // namespace heddle::inline v0::model::layers

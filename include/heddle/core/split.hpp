// heddle/core/split.hpp: split policies of a range: balanced, chunked, cyclic, zigzag.
#pragma once

#include <heddle/core/config.hpp>

#include <concepts>
#include <cstdint>

namespace heddle::inline v0 {

/// A balanced cut of `[0, extent)` into `parts` contiguous pieces: sizes differ by at most one, the larger pieces
/// come first, and pieces may be empty when there are more parts than elements.
/// Size of part r: `q + [r < m]`, offset: `r*q + min(r, m)`, with `q = extent / parts`, `m = extent % parts`.
/// Requires `extent >= 0` and `parts > 0`. Units: elements.
struct balanced_split {
  std::int64_t extent = 0;
  std::int64_t parts = 1;

  HEDDLE_HD constexpr std::int64_t size(std::int64_t part) const noexcept {
    return extent / parts + (part < extent % parts ? 1 : 0);
  }
  HEDDLE_HD constexpr std::int64_t offset(std::int64_t part) const noexcept {
    const std::int64_t larger = extent % parts;
    return part * (extent / parts) + (part < larger ? part : larger);
  }
  /// The part that holds element `index`. Requires `0 <= index < extent`.
  HEDDLE_HD constexpr std::int64_t owner(std::int64_t index) const noexcept {
    const std::int64_t quotient = extent / parts;
    const std::int64_t larger = extent % parts;
    const std::int64_t in_larger = larger * (quotient + 1);
    return index < in_larger ? index / (quotient + 1) : larger + (index - in_larger) / quotient;
  }
  /// The largest part.
  HEDDLE_HD constexpr std::int64_t largest() const noexcept { return extent / parts + (extent % parts != 0 ? 1 : 0); }
};

/// The kind of policies that split a dimension: see `split_policy`.
struct split_kind {};

/// A rule that cuts `[0, n)` into `p` parts, each element in exactly one. All functions are static and constexpr; `r` is a
/// part, `global` an element of the whole, `local` its place inside its part. Requires n >= 0, p > 0. Units: elements.
///   size(n, p, r)              elements of part r; may be zero
///   owner(n, p, global)        the part that holds the element
///   to_local(n, p, global)     its place inside that part
///   to_global(n, p, r, local)  the inverse
///   run(n, p, r, local)        how many elements of the part, from `local` on, follow each other in the whole too; at least 1
///   stored(n, p, r)            elements of memory the part takes: its size, or more when parts are padded
///   contiguous                 whether each part is one interval, in the order of the parts
///   pads                       (may be left out: false) whether `stored` can be more than `size`
///   parts                      (may be left out: 0) the number of parts it always makes, 0 for any
///   fits(n, p)                 whether the rule can cut n elements into p parts at all
/// One part should be the whole in its order, without padding. A rule for which it is not cannot be redistributed along a
/// dimension that an axis of one rank cuts by it, because everywhere else such an axis does nothing.
template <class P>
concept split_policy = std::same_as<typename P::kind, split_kind> && requires(std::int64_t n) {
  { P::size(n, n, n) } -> std::same_as<std::int64_t>;
  { P::owner(n, n, n) } -> std::same_as<std::int64_t>;
  { P::to_local(n, n, n) } -> std::same_as<std::int64_t>;
  { P::to_global(n, n, n, n) } -> std::same_as<std::int64_t>;
  { P::run(n, n, n, n) } -> std::same_as<std::int64_t>;
  { P::stored(n, n, n) } -> std::same_as<std::int64_t>;
  { P::fits(n, n) } -> std::same_as<bool>;
  { P::contiguous } -> std::convertible_to<bool>;
};

/// The split policies a `shard` placement may name.
namespace split {

/// Sizes that differ by at most one, larger parts first (`balanced_split`). The default.
struct balanced {
  using kind = split_kind;
  static constexpr bool contiguous = true;
  HEDDLE_HD static constexpr bool fits(std::int64_t, std::int64_t) noexcept { return true; }
  HEDDLE_HD static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return balanced_split{n, p}.size(r);
  }
  HEDDLE_HD static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return size(n, p, r);
  }
  HEDDLE_HD static constexpr std::int64_t owner(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return balanced_split{n, p}.owner(global);
  }
  HEDDLE_HD static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return global - balanced_split{n, p}.offset(owner(n, p, global));
  }
  HEDDLE_HD static constexpr std::int64_t to_global(std::int64_t n, std::int64_t p, std::int64_t r,
                                                    std::int64_t local) noexcept {
    return balanced_split{n, p}.offset(r) + local;
  }
  HEDDLE_HD static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r,
                                              std::int64_t local) noexcept {
    return size(n, p, r) - local;
  }
};

/// Chunks of `ceil(n / p)`, the last ones shorter or empty: 5 over 4 is 2, 2, 1, 0. What torch.chunk and DTensor do.
struct ceil {
  using kind = split_kind;
  static constexpr bool contiguous = true;
  HEDDLE_HD static constexpr bool fits(std::int64_t, std::int64_t) noexcept { return true; }
  HEDDLE_HD static constexpr std::int64_t chunk(std::int64_t n, std::int64_t p) noexcept {
    return n / p + (n % p != 0 ? 1 : 0);
  }
  HEDDLE_HD static constexpr std::int64_t offset(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    // May be beyond n, and beyond what a signed number holds.
    const std::uint64_t from = static_cast<std::uint64_t>(r) * static_cast<std::uint64_t>(chunk(n, p));
    return from < static_cast<std::uint64_t>(n) ? static_cast<std::int64_t>(from) : n;
  }
  HEDDLE_HD static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return offset(n, p, r + 1) - offset(n, p, r);
  }
  HEDDLE_HD static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return size(n, p, r);
  }
  HEDDLE_HD static constexpr std::int64_t owner(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return global / chunk(n, p);
  }
  HEDDLE_HD static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return global % chunk(n, p);
  }
  HEDDLE_HD static constexpr std::int64_t to_global(std::int64_t n, std::int64_t p, std::int64_t r,
                                                    std::int64_t local) noexcept {
    return offset(n, p, r) + local;
  }
  HEDDLE_HD static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r,
                                              std::int64_t local) noexcept {
    return size(n, p, r) - local;
  }
};

/// Blocks of `Block` elements dealt out in turn, as in ScaLAPACK and HPF; the last block may be shorter.
/// Source: element g is in part (g / Block) mod p, at (g / (Block p)) Block + g mod Block.
template <std::int64_t Block>
struct block_cyclic {
  static_assert(Block > 0, "heddle: split::block_cyclic<Block>: the block must have at least one element");
  using kind = split_kind;
  static constexpr bool contiguous = false;
  HEDDLE_HD static constexpr bool fits(std::int64_t, std::int64_t) noexcept { return true; }
  HEDDLE_HD static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    const std::int64_t whole = n / Block;
    const std::int64_t rest = whole % p;
    return whole / p * Block + (r < rest ? Block : r == rest ? n % Block : 0);
  }
  HEDDLE_HD static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return size(n, p, r);
  }
  HEDDLE_HD static constexpr std::int64_t owner(std::int64_t, std::int64_t p, std::int64_t global) noexcept {
    return global / Block % p;
  }
  HEDDLE_HD static constexpr std::int64_t to_local(std::int64_t, std::int64_t p, std::int64_t global) noexcept {
    return global / Block / p * Block + global % Block;
  }
  HEDDLE_HD static constexpr std::int64_t to_global(std::int64_t, std::int64_t p, std::int64_t r,
                                                    std::int64_t local) noexcept {
    return (local / Block * p + r) * Block + local % Block;
  }
  HEDDLE_HD static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r,
                                              std::int64_t local) noexcept {
    const std::int64_t left = size(n, p, r) - local;
    if (p == 1) return left;
    const std::int64_t in_block = Block - local % Block;
    return in_block < left ? in_block : left;
  }
};

/// Balanced cut into 2p chunks; part r takes chunks r and 2p-1-r, so that causal attention gives every part equal work
/// when 2p divides n. Source: head-tail order of ring attention implementations.
struct zigzag {
  using kind = split_kind;
  static constexpr bool contiguous = false;
  HEDDLE_HD static constexpr bool fits(std::int64_t, std::int64_t) noexcept { return true; }
  HEDDLE_HD static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    const balanced_split chunks{n, 2 * p};
    return chunks.size(r) + chunks.size(2 * p - 1 - r);
  }
  HEDDLE_HD static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return size(n, p, r);
  }
  HEDDLE_HD static constexpr std::int64_t owner(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    const std::int64_t chunk = balanced_split{n, 2 * p}.owner(global);
    return chunk < p ? chunk : 2 * p - 1 - chunk;
  }
  HEDDLE_HD static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    const balanced_split chunks{n, 2 * p};
    const std::int64_t chunk = chunks.owner(global);
    return global - chunks.offset(chunk) + (chunk < p ? 0 : chunks.size(2 * p - 1 - chunk));
  }
  HEDDLE_HD static constexpr std::int64_t to_global(std::int64_t n, std::int64_t p, std::int64_t r,
                                                    std::int64_t local) noexcept {
    const balanced_split chunks{n, 2 * p};
    const std::int64_t head = chunks.size(r);
    return local < head ? chunks.offset(r) + local : chunks.offset(2 * p - 1 - r) + local - head;
  }
  HEDDLE_HD static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r,
                                              std::int64_t local) noexcept {
    const std::int64_t head = balanced_split{n, 2 * p}.size(r);
    const bool middle = r == p - 1;  // its two chunks are neighbours
    return local < head && !middle ? head - local : size(n, p, r) - local;
  }
};

/// Parts of the given sizes, one per rank along the axis; they must add up to the extent of the dimension.
template <std::int64_t... Sizes>
struct ragged {
  static_assert(sizeof...(Sizes) > 0 && ((Sizes >= 0) && ...),
                "heddle: split::ragged<sizes...>: give one size per rank along the axis, none of them negative");
  static_assert(
      [] {
        std::uint64_t sum = 0;  // two numbers of 63 bits have a sum of 64
        return ((sum += static_cast<std::uint64_t>(Sizes), sum >> 63 == 0) && ...);
      }(),
      "heddle: split::ragged<sizes...>: the sizes add up to more than a 64-bit number counts");
  using kind = split_kind;
  static constexpr bool contiguous = true;
  static constexpr std::int64_t parts = static_cast<std::int64_t>(sizeof...(Sizes));
  static constexpr bool fits(std::int64_t n, std::int64_t p) noexcept {
    return p == static_cast<std::int64_t>(sizeof...(Sizes)) &&
           static_cast<std::uint64_t>(n) == (std::uint64_t{0} + ... + static_cast<std::uint64_t>(Sizes));
  }
  static constexpr std::int64_t offset(std::int64_t r) noexcept {
    std::int64_t at = 0, sum = 0;
    ((sum += at++ < r ? Sizes : 0), ...);
    return sum;
  }
  static constexpr std::int64_t size(std::int64_t, std::int64_t, std::int64_t r) noexcept {
    return offset(r + 1) - offset(r);
  }
  static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return size(n, p, r);
  }
  static constexpr std::int64_t owner(std::int64_t, std::int64_t p, std::int64_t global) noexcept {
    std::int64_t r = 0;
    while (r + 1 < p && global >= offset(r + 1)) ++r;
    return r;
  }
  static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return global - offset(owner(n, p, global));
  }
  static constexpr std::int64_t to_global(std::int64_t, std::int64_t, std::int64_t r, std::int64_t local) noexcept {
    return offset(r) + local;
  }
  static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t local) noexcept {
    return size(n, p, r) - local;
  }
};

/// As `Inner`, but every part takes the memory of the largest one; the elements come first, the padding last and means
/// nothing. For transports and kernels that want equal sizes.
template <split_policy Inner = ceil>
struct padded {
  static_assert(Inner::contiguous, "heddle: split::padded<Inner>: the inner policy must give contiguous parts");
  using kind = split_kind;
  static constexpr bool contiguous = Inner::contiguous;
  static constexpr bool pads = true;
  static constexpr std::int64_t parts = [] {
    if constexpr (requires { Inner::parts; })
      return std::int64_t{Inner::parts};
    else
      return std::int64_t{0};
  }();
  static constexpr bool fits(std::int64_t n, std::int64_t p) noexcept { return Inner::fits(n, p); }
  static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) noexcept {
    return Inner::size(n, p, r);
  }
  static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t) noexcept {
    std::int64_t most = 0;
    for (std::int64_t r = 0; r < p; ++r) most = Inner::stored(n, p, r) > most ? Inner::stored(n, p, r) : most;
    return most;
  }
  static constexpr std::int64_t owner(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return Inner::owner(n, p, global);
  }
  static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t global) noexcept {
    return Inner::to_local(n, p, global);
  }
  static constexpr std::int64_t to_global(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t local) noexcept {
    return Inner::to_global(n, p, r, local);
  }
  static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t local) noexcept {
    return Inner::run(n, p, r, local);
  }
};

}  // namespace split
}  // namespace heddle::inline v0

// heddle/core/dyadic.hpp: the aligned binary tree over indices, which fixes a fold's order.
#pragma once

#include <bit>
#include <cstdint>

namespace heddle::inline v0 {

/// A node of the dyadic tree over the indices [0, n): the range [begin, end) that it covers.
///
/// The tree splits a range of more than one element at the largest power of two below its length; level by level, it
/// pairs neighbours, and an odd last element moves up unchanged. Every node is an aligned block [k 2^l, (k + 1) 2^l),
/// cut off at n, so whoever holds the block can compute it alone.
/// Source: the tree of Ong and Velickovic 2022, arXiv:2212.08541; its nodes are those of a segment tree.
struct dyadic_node {
  std::int64_t begin = 0, end = 0;
  friend constexpr bool operator==(const dyadic_node&, const dyadic_node&) = default;
};

/// How many of `length` elements are in the left part of a node, `length` at least two.
constexpr std::int64_t dyadic_split(std::int64_t length) noexcept {
  std::int64_t half = 1;
  while (half < length - half) half *= 2;
  return half;
}

/// The end of the largest node over [0, n) that begins at `begin` and does not pass `end`. From `begin` on, one after
/// the other, these are the maximal nodes of a range: at most 2 log2(n) of them, one for n = 1.
constexpr std::int64_t dyadic_node_end(std::int64_t begin, std::int64_t end, std::int64_t n) noexcept {
  std::int64_t block = 1;
  while (begin % (2 * block) == 0 && begin + block < n && (begin + 2 * block < n ? begin + 2 * block : n) <= end)
    block *= 2;
  return begin + block < n ? begin + block : n;
}

/// The height of the tree over `count` elements: ceil(log2(count)), 0 for none.
constexpr std::int64_t dyadic_depth(std::int64_t count) noexcept {
  return count < 2 ? 0 : static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(count) - 1));
}

}  // namespace heddle::inline v0

// heddle/core/min_move_window.hpp: the fewest moves that make occupied slots adjacent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0 {

/// What is in one slot goes to another, free one.
struct slot_move {
  std::int64_t from = 0, to = 0;
  friend bool operator==(const slot_move&, const slot_move&) = default;
};

/// Slots first, ..., first + count - 1, and the moves that fill them.
struct slot_window {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::vector<slot_move> moves{};
  friend bool operator==(const slot_window&, const slot_window&) = default;
};

/// The window of as many slots as are occupied (not 0) that leaves the fewest occupied ones outside, of several the first one, and a move for each of those:
/// in the order of slots they go to the free slots of the window. Occupied slots inside stay, so their order is kept and that of the moved ones may change. No slot
/// is both source and target. Takes time proportional to the number of slots.
/// Source: Flover, arXiv:2305.13484, section on memory shuffling.
constexpr slot_window min_move_window(std::span<const std::uint8_t> occupied) {
  const std::size_t slots = occupied.size();
  std::size_t count = 0;
  for (const std::uint8_t x : occupied) count += x != 0 ? 1 : 0;
  std::size_t inside = 0, most = 0, first = 0;
  for (std::size_t end = 0; end < slots; ++end) {  // the window that ends with slot `end`
    inside += occupied[end] != 0 ? 1 : 0;
    if (end >= count) inside -= occupied[end - count] != 0 ? 1 : 0;
    if (end + 1 >= count && inside > most) {
      most = inside;
      first = end + 1 - count;
    }
  }
  slot_window w{static_cast<std::int64_t>(first), static_cast<std::int64_t>(count), {}};
  std::size_t to = first;
  for (std::size_t from = 0; from < slots; ++from) {
    if (occupied[from] == 0 || (from >= first && from < first + count)) continue;
    while (occupied[to] != 0) ++to;
    w.moves.push_back({static_cast<std::int64_t>(from), static_cast<std::int64_t>(to++)});
  }
  return w;
}

}  // namespace heddle::inline v0

#include <heddle/core/min_move_window.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace hd = heddle;

static_assert([] {
  constexpr std::array<std::uint8_t, 6> occupied{1, 0, 0, 1, 1, 0};
  const hd::slot_window w = hd::min_move_window(occupied);
  return w.first == 2 && w.count == 3 && w.moves.size() == 1 && w.moves[0] == hd::slot_move{0, 2};
}());

TEST_CASE("slots come next to each other in as few moves as any window takes", "[core][law]") {
  for (std::size_t slots = 0; slots <= 12; ++slots)
    for (unsigned pattern = 0; pattern < (1u << slots); ++pattern) {
      std::vector<std::uint8_t> occupied(slots);
      for (std::size_t i = 0; i < slots; ++i) occupied[i] = (pattern >> i) & 1u;
      const auto live = static_cast<std::size_t>(std::count(occupied.begin(), occupied.end(), 1));
      std::size_t fewest = slots + 1, first = 0;  // over all windows of as many slots
      for (std::size_t w = 0; w + live <= slots; ++w) {
        std::size_t outside = 0;
        for (std::size_t i = 0; i < slots; ++i) outside += occupied[i] != 0 && (i < w || i >= w + live) ? 1 : 0;
        if (outside < fewest) {
          fewest = outside;
          first = w;
        }
      }
      const hd::slot_window found = hd::min_move_window(occupied);
      std::set<std::int64_t> from, to;
      std::vector<std::uint8_t> after = occupied;
      bool legal = true;
      std::int64_t last = -1;
      for (const hd::slot_move& m : found.moves) {
        legal = legal && occupied[static_cast<std::size_t>(m.from)] == 1 &&
                occupied[static_cast<std::size_t>(m.to)] == 0 && m.from > last;  // moved in the order of slots
        last = m.from;
        from.insert(m.from);
        to.insert(m.to);
        after[static_cast<std::size_t>(m.from)] = 0;
        after[static_cast<std::size_t>(m.to)] = 1;
      }
      bool together = true;
      for (std::size_t i = 0; i < slots; ++i) {
        const auto at = static_cast<std::int64_t>(i);
        together = together && (after[i] != 0) == (at >= found.first && at < found.first + found.count);
      }
      const bool right = legal && together && found.moves.size() == fewest && from.size() == fewest &&
                         to.size() == fewest && static_cast<std::size_t>(found.count) == live &&
                         (live == 0 || static_cast<std::size_t>(found.first) == first);
      if (!right) {
        CAPTURE(slots, pattern, fewest, first, found.first, found.count, found.moves.size());
        REQUIRE(right);
      }
    }
  SUCCEED("all patterns of up to 12 slots");
}

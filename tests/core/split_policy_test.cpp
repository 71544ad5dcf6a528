#include <heddle/core/split.hpp>

#include "catch.hpp"

#include <cstdint>
#include <vector>

namespace {
using namespace heddle;

// Every element in exactly one part, the maps inverse of each other, runs as long as they can be.
template <split_policy P>
void check_partition(std::int64_t n, std::int64_t p) {
  CAPTURE(n, p);
  std::vector<int> seen(static_cast<std::size_t>(n), 0);
  for (std::int64_t r = 0; r < p; ++r) {
    const std::int64_t size = P::size(n, p, r);
    REQUIRE(size >= 0);
    REQUIRE(P::stored(n, p, r) >= size);
    for (std::int64_t l = 0; l < size; ++l) {
      const std::int64_t g = P::to_global(n, p, r, l);
      REQUIRE((g >= 0 && g < n));
      ++seen[static_cast<std::size_t>(g)];
      REQUIRE(P::owner(n, p, g) == r);
      REQUIRE(P::to_local(n, p, g) == l);
      std::int64_t run = 1;
      while (l + run < size && P::to_global(n, p, r, l + run) == g + run) ++run;
      REQUIRE(P::run(n, p, r, l) == run);
      if (P::contiguous) REQUIRE(run == size - l);
    }
  }
  for (const int times : seen) REQUIRE(times == 1);
}
template <split_policy P>
void check_all() {
  for (std::int64_t n = 0; n <= 64; ++n)
    for (std::int64_t p = 1; p <= 8; ++p) check_partition<P>(n, p);
}
}  // namespace

TEST_CASE("every split policy cuts a range into disjoint parts", "[core][split]") {
  check_all<split::balanced>();
  check_all<split::ceil>();
  check_all<split::block_cyclic<1>>();
  check_all<split::block_cyclic<3>>();
  check_all<split::block_cyclic<16>>();
  check_all<split::zigzag>();
  check_all<split::padded<>>();
  check_all<split::padded<split::balanced>>();
  check_partition<split::ragged<3, 0, 5, 1>>(9, 4);
  check_partition<split::ragged<0, 0>>(0, 2);
}

TEST_CASE("split policies give the parts their sources name", "[core][split]") {
  STATIC_REQUIRE(split::ceil::size(5, 4, 0) == 2);
  STATIC_REQUIRE(split::ceil::size(5, 4, 2) == 1);
  STATIC_REQUIRE(split::ceil::size(5, 4, 3) == 0);
  int empty = 0;
  for (int r = 0; r < 8; ++r) empty += split::ceil::size(9, 8, r) == 0;
  CHECK(empty == 3);
  empty = 0;
  for (int r = 0; r < 16; ++r) empty += split::ceil::size(17, 16, r) == 0;
  CHECK(empty == 7);
  for (std::int64_t n = 0; n <= 64; ++n)
    for (std::int64_t p = 1; p <= 8; ++p) {
      CHECK(split::ceil::size(n, p, 0) == split::balanced::size(n, p, 0));  // the same largest part
      for (int r = 0; r < p; ++r) CHECK(split::padded<>::stored(n, p, r) == split::ceil::chunk(n, p));
    }
  // Part 1 of zigzag over 4: chunks 1 and 6 of eight.
  STATIC_REQUIRE(split::zigzag::to_global(16, 4, 1, 1) == 3);
  STATIC_REQUIRE(split::zigzag::to_global(16, 4, 1, 2) == 12);
  STATIC_REQUIRE(split::block_cyclic<2>::to_global(16, 4, 1, 2) == 10);
  STATIC_REQUIRE(split::ragged<3, 0, 5>::fits(8, 3));
  STATIC_REQUIRE_FALSE(split::ragged<3, 0, 5>::fits(9, 3));
  STATIC_REQUIRE_FALSE(split::ragged<3, 0, 5>::fits(8, 4));
}

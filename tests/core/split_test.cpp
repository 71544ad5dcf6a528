#include <heddle/core/split.hpp>

#include "catch.hpp"

#include <cstdint>
#include <limits>

TEST_CASE("a balanced split covers every element once", "[core][law]") {
  using heddle::balanced_split;
  STATIC_REQUIRE(balanced_split{10, 3}.size(0) == 4);
  STATIC_REQUIRE(balanced_split{10, 3}.offset(2) == 7);
  for (std::int64_t extent = 0; extent <= 40; ++extent)
    for (std::int64_t parts = 1; parts <= 12; ++parts) {
      CAPTURE(extent, parts);
      const balanced_split split{extent, parts};
      std::int64_t next = 0, smallest = extent, largest = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        REQUIRE(split.offset(part) == next);
        for (std::int64_t i = 0; i < split.size(part); ++i) REQUIRE(split.owner(next + i) == part);
        next += split.size(part);
        smallest = (std::min)(smallest, split.size(part));
        largest = (std::max)(largest, split.size(part));
        if (part > 0) REQUIRE(split.size(part) <= split.size(part - 1));
      }
      REQUIRE(next == extent);
      REQUIRE(largest - smallest <= 1);
      REQUIRE(split.largest() == largest);
    }
}

TEST_CASE("cuts of the longest ranges do not wrap around", "[core]") {
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();  // 2^63 - 1, of which 7 is a divisor
  STATIC_REQUIRE(heddle::balanced_split{most, 7}.largest() == most / 7);
  STATIC_REQUIRE(heddle::balanced_split{most, 2}.largest() == std::int64_t{1} << 62);
  for (const std::int64_t parts : {1, 2, 3, 8, 1000}) {
    std::int64_t left = most;
    for (std::int64_t r = 0; r < parts; ++r) {
      const std::int64_t size = heddle::split::ceil::size(most, parts, r);
      REQUIRE(size >= 0);
      REQUIRE(size <= left);
      left -= size;
    }
    CHECK(left == 0);
  }
}

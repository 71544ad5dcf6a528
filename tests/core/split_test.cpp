#include <heddle/core/split.hpp>

#include "catch.hpp"

#include <cstdint>

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

#include <heddle/core/shape.hpp>

#include "catch.hpp"

#include <array>
#include <cstdint>
#include <type_traits>

using heddle::dynamic;
using heddle::shape;
using Catch::Matchers::Contains;

TEST_CASE("a shape is the same in all three regimes", "[core][law]") {
  constexpr shape<8, 64> fixed;
  constexpr shape<dynamic, 64> mixed{8};
  constexpr shape free{8, 64};
  STATIC_REQUIRE(std::is_same_v<decltype(free), const shape<dynamic, dynamic>>);
  STATIC_REQUIRE(fixed == mixed);
  STATIC_REQUIRE(mixed == free);
  STATIC_REQUIRE(free == fixed);
  STATIC_REQUIRE(fixed.size() == 512);
  STATIC_REQUIRE(mixed.size() == 512);
  STATIC_REQUIRE(free.size() == 512);
  STATIC_REQUIRE(fixed.extent(1) == 64);
  STATIC_REQUIRE(mixed[0] == 8);
  STATIC_REQUIRE(mixed[1] == 64);
  STATIC_REQUIRE(mixed.extents() == std::array<std::int64_t, 2>{8, 64});
  STATIC_REQUIRE(fixed.is_static);
  STATIC_REQUIRE_FALSE(mixed.is_static);
  STATIC_REQUIRE_FALSE(free == shape{8, 64, 1});
  STATIC_REQUIRE_FALSE(free == shape{64, 8});
}

TEST_CASE("a shape stores only what is dynamic", "[core][law]") {
  STATIC_REQUIRE(std::is_empty_v<shape<8, 64>>);
  STATIC_REQUIRE(std::is_empty_v<shape<>>);
  STATIC_REQUIRE(sizeof(shape<dynamic, 64>) == sizeof(std::int64_t));
  STATIC_REQUIRE(sizeof(shape<8, dynamic, 2, dynamic>) == 2 * sizeof(std::int64_t));
  STATIC_REQUIRE(std::is_trivially_copyable_v<shape<dynamic, 64>>);
}

TEST_CASE("scalars and empty tensors are shapes too", "[core][law]") {
  STATIC_REQUIRE(shape<>::rank() == 0);
  STATIC_REQUIRE(shape<>{}.size() == 1);
  STATIC_REQUIRE(shape{0, 5}.size() == 0);
  STATIC_REQUIRE(shape<0, 5>{}.size() == 0);
  STATIC_REQUIRE(heddle::make_shape(std::array<std::int64_t, 0>{}) == shape<>{});
  CHECK(to_string(shape<>{}) == "scalar");
  CHECK(to_string(shape<dynamic, 64>{8}) == "8 x 64");
}

TEST_CASE("a shape with too many elements says so instead of counting wrong", "[core]") {
  constexpr std::int64_t big = std::int64_t{1} << 31;
  STATIC_REQUIRE(shape{big + 1, std::int64_t{1}}.size() == big + 1);
  STATIC_REQUIRE(shape{big, big}.size() == std::int64_t{1} << 62);
  STATIC_REQUIRE(shape{big, big, std::int64_t{4}, std::int64_t{0}}.size() == 0);
  STATIC_REQUIRE(shape{std::int64_t{0}, big, big, std::int64_t{4}}.size() == 0);
  CHECK_THROWS_WITH((shape{big, big, 2}.size()), Contains("2147483648 x 2147483648 x 2") && Contains("more elements"));
}

TEST_CASE("every mixture of static and dynamic extents finds its own numbers", "[core][law]") {
  const auto check = [](auto s) {
    CHECK(s[0] == 2);
    CHECK(s[1] == 3);
    CHECK(s[2] == 5);
    CHECK(s.size() == 30);
    CHECK(s == shape{2, 3, 5});
    CHECK(to_string(s) == "2 x 3 x 5");
    CHECK(heddle::make_shape(s.extents()) == s);
  };
  check(shape<2, 3, 5>{});
  check(shape<2, 3, dynamic>{5});
  check(shape<2, dynamic, 5>{3});
  check(shape<2, dynamic, dynamic>{3, 5});
  check(shape<dynamic, 3, 5>{2});
  check(shape<dynamic, 3, dynamic>{2, 5});
  check(shape<dynamic, dynamic, 5>{2, 3});
  check(shape<dynamic, dynamic, dynamic>{2, 3, 5});
  // All extents may be given; the static ones must agree.
  check(shape<2, 3, 5>{2, 3, 5});
  check(shape<2, dynamic, 5>{2, 3, 5});
}

TEST_CASE("a shape refuses extents that contradict it", "[core][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS((shape{2, -3}), heddle::layout_error);
  CHECK_THROWS_WITH((shape{2, -3}), Contains("heddle: ") && Contains("-3"));
  CHECK_THROWS_AS((shape<2, dynamic>{4, 3}), heddle::layout_error);
  CHECK_THROWS_WITH((shape<2, dynamic>{4, 3}), Contains("dimension 0") && Contains("fixed at 2") && Contains("got 4"));
  CHECK_THROWS_AS((shape<2, 3>{2, 4}), heddle::layout_error);
}

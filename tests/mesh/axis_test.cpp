#include <heddle/mesh/axis.hpp>

#include "catch.hpp"

#include <type_traits>

namespace mine {
struct rows {};
}  // namespace mine

using heddle::axis;

TEST_CASE("an axis has a size known now or at start-up", "[mesh][law]") {
  STATIC_REQUIRE(axis<heddle::tp, 4>::size() == 4);
  STATIC_REQUIRE(axis<heddle::tp>{4}.size() == 4);
  STATIC_REQUIRE(axis<heddle::tp, 4>::is_static);
  STATIC_REQUIRE_FALSE(axis<heddle::tp>::is_static);
  STATIC_REQUIRE(std::is_empty_v<axis<heddle::tp, 4>>);
  STATIC_REQUIRE(heddle::axis_like<axis<mine::rows, 3>>);
  STATIC_REQUIRE(heddle::axis_like<axis<mine::rows>>);
  STATIC_REQUIRE_FALSE(heddle::axis_like<mine::rows>);
  CHECK(axis<heddle::tp>{}.size() == 1);
}

TEST_CASE("an axis without ranks is refused, by name", "[mesh][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS(axis<mine::rows>{0}, heddle::mesh_error);
  CHECK_THROWS_WITH(axis<mine::rows>{-2}, Contains("heddle: ") && Contains("axis rows") && Contains("-2"));
}

#include <heddle/mesh/parse.hpp>

#include "catch.hpp"

#include <array>
#include <random>
#include <string>
#include <vector>

using heddle::axis;
using heddle::dp;
using heddle::parse_mesh;
using heddle::pp;
using heddle::tp;

namespace {
using open = heddle::mesh<axis<dp>, axis<pp>, axis<tp>>;
using mixed = heddle::mesh<axis<dp>, axis<pp, 3>>;
using fixed = heddle::mesh<axis<dp, 2>, axis<tp, 4>>;
}  // namespace

TEST_CASE("a mesh is read from text, in any order", "[mesh]") {
  CHECK(parse_mesh<open>("dp=2,pp=3,tp=4") == open{2, 3, 4});
  CHECK(parse_mesh<open>("tp=4,dp=2,pp=3") == open{2, 3, 4});
  CHECK(parse_mesh<open>("tp=4") == open{1, 1, 4});
  CHECK(parse_mesh<open>("") == open{1, 1, 1});
  CHECK(parse_mesh<mixed>("dp=5") == mixed{5});
  CHECK(parse_mesh<mixed>("pp=3,dp=5") == mixed{5});
  CHECK(parse_mesh<fixed>("") == fixed{});
  CHECK(parse_mesh<fixed>("tp=4,dp=2") == fixed{});
}

TEST_CASE("what a mesh prints can be read back", "[mesh][property]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> extent(1, 1000);
  for (int i = 0; i < 50; ++i) {
    const open m{extent(random), extent(random), extent(random)};
    std::string text = to_string(m);
    for (std::size_t at; (at = text.find(" x ")) != std::string::npos;) text.replace(at, 3, ",");
    CAPTURE(text);
    CHECK(parse_mesh<open>(text) == m);
  }
}

TEST_CASE("mesh text that cannot be meant is refused, and the pair is named", "[mesh][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS(parse_mesh<open>("ep=2"), heddle::mesh_error);
  CHECK_THROWS_WITH(parse_mesh<open>("dp=2,ep=2"), Contains("heddle: ") && Contains("ep=2") && Contains("dp, pp, tp"));
  CHECK_THROWS_WITH(parse_mesh<open>("dp=2,dp=4"), Contains("axis dp twice"));
  for (const std::string text : {"dp", "dp=", "dp=0", "dp=-2", "dp=2x", "dp=two", "dp= 2", "dp=99999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_mesh<open>(text), Contains(text) && Contains("positive whole number"));
  }
  for (const std::string text : {",", "dp=2,,tp=2", " dp=2", "=2"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_mesh<open>(text), heddle::mesh_error);
  }
  CHECK_THROWS_WITH(parse_mesh<fixed>("tp=8"), Contains("axis tp") && Contains("fixed at 4") && Contains("got 8"));
  CHECK_THROWS_AS(parse_mesh<mixed>("pp=2"), heddle::mesh_error);
}

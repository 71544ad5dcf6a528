#include <heddle/core/policy.hpp>
#include <heddle/core/type_list.hpp>

#include "catch.hpp"

#include <type_traits>

namespace {
struct a {};
struct b {};
struct c {};

struct colour_kind {};
struct shape_kind {};
struct red {
  using kind = colour_kind;
};
struct blue {
  using kind = colour_kind;
};
struct oval {
  using kind = shape_kind;
};
}  // namespace

TEST_CASE("lists of types answer how often, where and whether", "[core][law]") {
  using namespace heddle;
  STATIC_REQUIRE(type_list<>::size == 0);
  STATIC_REQUIRE(type_list<a, b, a>::size == 3);
  STATIC_REQUIRE(std::is_empty_v<type_list<a, b>>);
  STATIC_REQUIRE(count_of<a> == 0);
  STATIC_REQUIRE(count_of<a, a, b, a> == 2);
  STATIC_REQUIRE(contains<b, a, b>);
  STATIC_REQUIRE_FALSE(contains<c, a, b>);
  STATIC_REQUIRE_FALSE(contains<a>);
  STATIC_REQUIRE(index_of<a, a, b> == 0);
  STATIC_REQUIRE(index_of<b, a, b, b> == 1);
  STATIC_REQUIRE(index_of<c, a, b> == 2);  // one past the end
  STATIC_REQUIRE(index_of<c> == 0);
  STATIC_REQUIRE(all_distinct<>);
  STATIC_REQUIRE(all_distinct<a, b, c>);
  STATIC_REQUIRE_FALSE(all_distinct<a, b, a>);
  STATIC_REQUIRE(std::is_same_v<type_at<0, a>, a>);
  STATIC_REQUIRE(std::is_same_v<type_at<2, a, b, c>, c>);
  STATIC_REQUIRE(std::is_same_v<type_at<1, a, a, a>, a>);
  STATIC_REQUIRE(std::is_same_v<type_at<1, const a&, volatile b>, volatile b>);
}

TEST_CASE("policies are chosen by kind, in any order", "[core][law]") {
  using namespace heddle;
  STATIC_REQUIRE(policy<red>);
  STATIC_REQUIRE_FALSE(policy<a>);
  STATIC_REQUIRE(std::is_same_v<select_policy<colour_kind, red, oval, blue>, blue>);
  STATIC_REQUIRE(std::is_same_v<select_policy<colour_kind, red, blue, oval>, blue>);
  STATIC_REQUIRE(std::is_same_v<select_policy<colour_kind, red, oval>, red>);
  STATIC_REQUIRE(std::is_same_v<select_policy<colour_kind, red>, red>);
  STATIC_REQUIRE(policies_of_kind<colour_kind, red, oval, blue> == 2);
  STATIC_REQUIRE(policies_of_kind<shape_kind, red> == 0);
}

namespace {
struct painted : heddle::policy_set<painted, colour_kind, shape_kind> {};
template <class... Ps>
struct chosen_paint {
  using colour = heddle::select_policy<colour_kind, red, Ps...>;
  static constexpr bool fits() { return !std::is_same_v<colour, blue>; }
};
}  // namespace

TEST_CASE("a set of policies takes its kinds, and gives the refused choice where the chosen does not fit",
          "[core][law]") {
  STATIC_REQUIRE(painted::takes<red>);
  STATIC_REQUIRE_FALSE(painted::takes<a>);
  STATIC_REQUIRE(painted::accepts<>());
  STATIC_REQUIRE(painted::accepts<oval, red>());
  using fits = decltype(painted::choose<chosen_paint<oval, red>, void, oval, red>());
  STATIC_REQUIRE(std::is_same_v<fits::type, chosen_paint<oval, red>>);
  using refused = decltype(painted::choose<chosen_paint<blue>, void, blue>());
  STATIC_REQUIRE(std::is_same_v<refused::type, void>);
}

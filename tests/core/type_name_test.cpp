#include <heddle/core/fixed_string.hpp>
#include <heddle/core/type_name.hpp>

#include "catch.hpp"

#include <string>

// Compiled alone: this is in no namespace.
struct outermost {};
namespace room {
struct inner {};
template <class...>
struct of {};
}  // namespace room

TEST_CASE("type names are what a person would write", "[core]") {
  using namespace heddle;
  STATIC_REQUIRE(type_name<double>() == "double");
  STATIC_REQUIRE(type_name<int>() == "int");
  STATIC_REQUIRE(type_name<outermost>() == "outermost");
  STATIC_REQUIRE(type_name<room::inner>() == "room::inner");
  STATIC_REQUIRE(short_type_name<room::inner>() == "inner");
  STATIC_REQUIRE(short_type_name<outermost>() == "outermost");
  // Colons between angle brackets belong to the arguments.
  CHECK(std::string(short_type_name<room::of<room::inner>>()).substr(0, 3) == "of<");
  CHECK(std::string(type_name<room::of<room::inner, int>>()).find("room::inner") != std::string::npos);
}

namespace {
template <heddle::fixed_string Text>
constexpr auto text_of = Text.view();
}

TEST_CASE("text can be a template argument", "[core][law]") {
  STATIC_REQUIRE(text_of<"bi,io->bo"> == "bi,io->bo");
  STATIC_REQUIRE(text_of<"">.empty());
  STATIC_REQUIRE(heddle::fixed_string("abc").size() == 3);
}

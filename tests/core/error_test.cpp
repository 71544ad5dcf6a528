#include <heddle/core/error.hpp>

#include <heddle/core/text.hpp>

#include "catch.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

TEMPLATE_TEST_CASE("every exception is a heddle::error and a std::runtime_error", "[core][law]", heddle::mesh_error,
                   heddle::layout_error, heddle::comm_error, heddle::aborted_error, heddle::schedule_error,
                   heddle::config_error, heddle::numeric_error, heddle::memory_error, heddle::io_error) {
  STATIC_REQUIRE(std::is_base_of_v<heddle::error, TestType>);
  STATIC_REQUIRE(std::is_base_of_v<std::runtime_error, TestType>);
  STATIC_REQUIRE(std::is_nothrow_copy_constructible_v<TestType>);
  CHECK_THROWS_WITH(throw TestType("heddle: what went wrong"), "heddle: what went wrong");
}

TEST_CASE("an aborted rank can be told from a failed one", "[core][law]") {
  STATIC_REQUIRE(std::is_base_of_v<heddle::comm_error, heddle::aborted_error>);
  STATIC_REQUIRE_FALSE(std::is_base_of_v<heddle::aborted_error, heddle::comm_error>);
}

TEST_CASE("a message is put together from words, characters and whole numbers", "[core]") {
  using heddle::text_of;
  const std::string words = "words";
  CHECK(text_of({}).empty());
  CHECK(text_of({"heddle: ", words, ' ', std::string_view("seen"), ": ", words + "!"}) == "heddle: words seen: words!");
  CHECK(text_of({0, ' ', -1, ' ', 7u, ' ', std::int8_t{-128}, ' ', std::uint8_t{255}}) == "0 -1 7 -128 255");
  using wide = std::numeric_limits<std::int64_t>;
  using natural = std::numeric_limits<std::uint64_t>;
  CHECK(text_of({(wide::min)(), ' ', (wide::max)()}) ==
        std::to_string((wide::min)()) + " " + std::to_string((wide::max)()));
  CHECK(text_of({(natural::max)()}) == std::to_string((natural::max)()));
}

TEST_CASE("a message within another loses its first word", "[core]") {
  using heddle::without_prefix;
  CHECK(without_prefix("heddle: no room") == "no room");
  CHECK(without_prefix("heddle: heddle: no room") == "heddle: no room");
  CHECK(without_prefix("heddle:no room") == "heddle:no room");
  CHECK(without_prefix("in heddle: no room") == "in heddle: no room");
  CHECK(without_prefix("heddle: ").empty());
  CHECK(without_prefix("").empty());
}

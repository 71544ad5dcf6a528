#include <heddle/core/error.hpp>

#include "catch.hpp"

#include <stdexcept>
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

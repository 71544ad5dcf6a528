#include <heddle/core/privacy.hpp>

#include "catch.hpp"

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

namespace privacy_test {
namespace pv = heddle::privacy;
template <std::intmax_t N, std::intmax_t D = 1>
using e = pv::epsilon<N, D>;

TEST_CASE("budgets add up in sequence and the greatest counts in parallel", "[plan][law]") {
  using regions = pv::in_parallel<e<1, 5>, e<1, 2>, e<3, 10>>;
  STATIC_REQUIRE(std::same_as<regions, e<1, 2>>);
  STATIC_REQUIRE(std::same_as<pv::in_sequence<e<1, 10>, regions>, e<3, 5>>);
  using a = e<1, 6>;
  using b = e<2, 15>;
  using c = e<7, 4>;
  STATIC_REQUIRE(std::same_as<pv::in_sequence<a, b, c>, e<41, 20>>);  // 10/60 + 8/60 + 105/60
  STATIC_REQUIRE(std::same_as<pv::in_sequence<a, pv::in_sequence<b, c>>, pv::in_sequence<pv::in_sequence<a, b>, c>>);
  STATIC_REQUIRE(std::same_as<pv::in_parallel<a, pv::in_parallel<b, c>>, pv::in_parallel<pv::in_parallel<a, b>, c>>);
  STATIC_REQUIRE(std::same_as<pv::in_sequence<a, b>, pv::in_sequence<b, a>>);
  STATIC_REQUIRE(std::same_as<pv::in_parallel<a, b>, pv::in_parallel<b, a>>);
  STATIC_REQUIRE(std::same_as<pv::in_parallel<a, a>, a>);
  STATIC_REQUIRE(!std::same_as<pv::in_sequence<a, a>, a>);
  // Adding a budget to regions in parallel is adding it to each.
  STATIC_REQUIRE(std::same_as<pv::in_sequence<a, pv::in_parallel<b, c>>,
                              pv::in_parallel<pv::in_sequence<a, b>, pv::in_sequence<a, c>>>);
  // Lowest terms, for budgets given otherwise.
  STATIC_REQUIRE(std::same_as<pv::in_sequence<e<2, 4>>, e<1, 2>>);
  STATIC_REQUIRE(std::same_as<pv::in_parallel<e<2, 4>, e<1, 4>>, e<1, 2>>);
}

TEST_CASE("a ledger refuses what exceeds it, and noise that was drawn before, with nothing charged", "[plan]") {
  using Catch::Matchers::Contains;
  pv::ledger spent(e<3>{});
  spent.spend(e<1, 2>{}, 7, 0, 4);
  CHECK(spent.left() == pv::budget{1, 1});
  CHECK_THROWS_WITH(spent.spend(e<1, 3>{}, 7, 4, 4), Contains("4 frames of a budget of 1/3 cost more than the 1/1"));
  CHECK_THROWS_WITH(spent.spend(e<1, 100>{}, 7, 3, 1), Contains("frames 3 to 3") && Contains("frames 0 to 3 have had"));
  CHECK_THROWS_AS(spent.spend(e<1, 100>{}, 7, -1, 1), heddle::config_error);
  CHECK_THROWS_AS(spent.spend(e<1, 100>{}, 7, 9, -1), heddle::config_error);
  CHECK_THROWS_WITH(spent.spend(e<(std::numeric_limits<std::int64_t>::max)()>{}, 8, 0, 2),
                    Contains("no fraction of 64-bit numbers"));
  CHECK(spent.left() == pv::budget{1, 1});
  CHECK_THROWS_WITH(spent.spend(pv::budget{0, 1}, 9, 0, 1), Contains("costs more than 0") && Contains("0/1"));
  CHECK_THROWS_AS(pv::ledger(pv::budget{1, 0}), heddle::config_error);
  STATIC_REQUIRE(pv::budget{1, 6} + pv::budget{2, 15} == pv::budget{3, 10});
  spent.spend(e<1, 100>{}, 8, 3, 1);  // another seed
  CHECK(spent.left() == pv::budget{99, 100});
  spent.spend(e<99, 100>{}, 7, 4, 1);  // to the last
  CHECK(spent.left() == pv::budget{0, 1});
  CHECK_THROWS_AS(spent.spend(e<1, 1000000>{}, 7, 5, 1), heddle::config_error);
  spent.spend(e<1>{}, 7, 5, 0);  // no frames cost nothing
}

}  // namespace privacy_test

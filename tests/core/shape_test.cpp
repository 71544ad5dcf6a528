#include <heddle/core/next_index.hpp>
#include <heddle/core/shape.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

using Catch::Matchers::Contains;
using heddle::dynamic;
using heddle::shape;

// Where each index of a box lies in row-major memory, in the order of the walk; and whether the walk ends at the first index again.
template <std::size_t Rank>
constexpr bool walks_in_order(const std::array<std::int64_t, Rank>& extents, std::int64_t count) {
  std::array<std::int64_t, Rank> at{};
  std::int64_t seen = 0;
  do {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < Rank; ++d) flat = flat * extents[d] + at[d];
    if (flat != seen++) return false;
  } while (heddle::next_index(at, extents, Rank));
  return seen == count && at == std::array<std::int64_t, Rank>{};
}

TEST_CASE("a walk over a box meets each index once, in row-major order", "[core][law]") {
  STATIC_REQUIRE(walks_in_order(std::array<std::int64_t, 3>{2, 3, 4}, 24));
  STATIC_REQUIRE(walks_in_order(std::array<std::int64_t, 4>{1, 5, 1, 2}, 10));
  STATIC_REQUIRE(walks_in_order(std::array<std::int64_t, 1>{7}, 7));
  STATIC_REQUIRE(walks_in_order(std::array<std::int64_t, 0>{}, 1));
  STATIC_REQUIRE(!walks_in_order(std::array<std::int64_t, 2>{2, 3}, 5));
}

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
  STATIC_REQUIRE(shape<big, big, 0>{}.size() == 0);
  STATIC_REQUIRE(shape<0, big, big, big>{}.size() == 0);
  STATIC_REQUIRE(noexcept(std::declval<const shape<dynamic, dynamic>&>().size()));
  const auto refused = [](auto make) {
    CHECK_THROWS_AS(make(), heddle::layout_error);
    CHECK_THROWS_WITH(make(),
                      "heddle: a shape of 2147483648 x 2147483648 x 2 has more elements than a 64-bit number counts");
  };
  refused([] { return shape{big, big, 2}; });
  refused([] { return shape<big, dynamic, 2>{big}; });
  refused([] { return shape<dynamic, big, dynamic>{big, 2}; });
  refused([] { return heddle::make_shape(std::array<std::int64_t, 3>{big, big, 2}); });
}

TEST_CASE("products and sums of counts are exact or none", "[core][law]") {
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
  // The definition, in arithmetic of 128 bits.
  const std::array<std::int64_t, 12> numbers{0,
                                             1,
                                             2,
                                             3,
                                             7,
                                             std::int64_t{1} << 31,
                                             (std::int64_t{1} << 32) + 1,
                                             3037000499,
                                             3037000500,
                                             std::int64_t{1} << 62,
                                             most - 1,
                                             most};
  for (const std::int64_t a : numbers)
    for (const std::int64_t b : numbers) {
      CAPTURE(a, b);
      __extension__ using wide = __int128;
      const wide product = static_cast<wide>(a) * b, sum = static_cast<wide>(a) + b;
      CHECK(heddle::product_of_counts(a, b) == (product > most ? -1 : static_cast<std::int64_t>(product)));
      CHECK(heddle::sum_of_counts(a, b) == (sum > most ? -1 : static_cast<std::int64_t>(sum)));
    }
  STATIC_REQUIRE(heddle::product_of_counts(heddle::uncountable, 0) == heddle::uncountable);
  STATIC_REQUIRE(heddle::sum_of_counts(0, heddle::uncountable) == heddle::uncountable);
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

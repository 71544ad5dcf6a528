#include <heddle/tensor/buffer.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

TEMPLATE_TEST_CASE("a buffer is aligned, zeroed and of the size asked for", "[tensor]", char, float, double,
                   std::int64_t) {
  for (const std::int64_t size : {0, 1, 3, 64, 1000}) {
    CAPTURE(size);
    const heddle::buffer<TestType> b(size);
    CHECK(b.size() == static_cast<std::size_t>(size));
    CHECK(b.empty() == (size == 0));
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    CHECK(b.end() - b.begin() == size);
    CHECK(std::all_of(b.begin(), b.end(), [](TestType x) { return x == TestType(0); }));
  }
}

TEST_CASE("a buffer moves, and does not copy", "[tensor][law]") {
  using buffer = heddle::buffer<int>;
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<buffer>);
  STATIC_REQUIRE_FALSE(std::is_copy_assignable_v<buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_assignable_v<buffer>);

  buffer a(10);
  std::iota(a.begin(), a.end(), 1);
  const int* const where = a.data();
  buffer b = std::move(a);
  CHECK(b.data() == where);
  CHECK(b.size() == 10);
  CHECK(b[9] == 10);
  CHECK(a.size() == 0);  // NOLINT: what a moved-from buffer is, is part of its contract
  CHECK(a.data() == nullptr);

  buffer c(3);
  c = std::move(b);
  CHECK(c.data() == where);
  CHECK(b.empty());  // NOLINT
  buffer none;
  CHECK(none.empty());
}

TEST_CASE("a buffer refuses sizes that cannot be", "[tensor][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS(heddle::buffer<float>(-1), heddle::layout_error);
  CHECK_THROWS_WITH(heddle::buffer<float>(-1), Contains("heddle: ") && Contains("-1 elements of 4 bytes"));
  CHECK_THROWS_AS(heddle::buffer<double>((std::numeric_limits<std::int64_t>::max)()), heddle::layout_error);
}

TEST_CASE("a type that asks for more alignment gets it", "[tensor]") {
  struct alignas(256) wide {
    float x[64];
  };
  for (int i = 0; i < 4; ++i) {
    const heddle::buffer<wide> b(3 + i);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
  }
}

#include <heddle/core/static_vector.hpp>

#include "catch.hpp"

#include <numeric>
#include <stdexcept>
#include <vector>

namespace {
constexpr auto squares(int n) {
  heddle::static_vector<int, 8> v;
  for (int i = 0; i < n; ++i) v.push_back(i * i);
  return v;
}
}  // namespace

TEST_CASE("a static vector works in constant expressions", "[core][law]") {
  constexpr auto v = squares(5);
  STATIC_REQUIRE(v.size() == 5);
  STATIC_REQUIRE(v.capacity() == 8);
  STATIC_REQUIRE(v[4] == 16);
  STATIC_REQUIRE(v.back() == 16);
  STATIC_REQUIRE(squares(0).empty());
  STATIC_REQUIRE(squares(3) == squares(3));
  STATIC_REQUIRE_FALSE(squares(3) == squares(4));
  STATIC_REQUIRE(std::accumulate(v.begin(), v.end(), 0) == 0 + 1 + 4 + 9 + 16);
}

TEST_CASE("a static vector does what a vector does, until it is full", "[core]") {
  heddle::static_vector<int, 4> v;
  std::vector<int> model;
  for (const int step : {1, 2, 3, -1, 4, -1, -1, 5, 6, 7}) {  // negative: pop
    if (step < 0) {
      v.pop_back();
      model.pop_back();
    } else {
      v.push_back(step);
      model.push_back(step);
    }
    REQUIRE(std::vector<int>(v.begin(), v.end()) == model);
  }
  CHECK_THROWS_AS(v.push_back(8), std::length_error);
  CHECK(v.size() == 4);
  v[0] = 9;
  CHECK(v[0] == 9);
  v.clear();
  CHECK(v.empty());

  // What a shorter life left behind does not count.
  heddle::static_vector<int, 4> other;
  CHECK(v == other);
}

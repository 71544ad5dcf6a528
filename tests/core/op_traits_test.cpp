// What operators promise, by their own members and by default.
#include <heddle/core/op_traits.hpp>

#include "catch.hpp"

namespace op_traits_test {  // named: clang takes the members of a specialisation for a type of its own for unused
namespace hd = heddle;

struct silent {
  int operator()(int a, int) const { return a; }
};
struct mean {
  static constexpr bool commutative = true;
  static constexpr bool associative = false;
  float operator()(float a, float b) const { return (a + b) / 2; }
};
struct whole_vectors {
  static constexpr bool elementwise = false;
  void operator()(std::span<const float>, std::span<const float>, std::span<float>) const {}
};
struct foreign {
  int operator()(int a, int b) const { return a ^ b; }
};
}  // namespace op_traits_test
using namespace op_traits_test;

template <>
struct heddle::op_traits<foreign> {
  static constexpr bool commutative = true, associative = true, elementwise = true, idempotent = false;
};

TEST_CASE("operators promise what they declare", "[core][op_traits]") {
  STATIC_REQUIRE(hd::op_traits<hd::plus>::commutative);
  STATIC_REQUIRE(hd::op_traits<hd::plus>::associative);
  STATIC_REQUIRE(hd::op_traits<hd::plus>::elementwise);
  STATIC_REQUIRE_FALSE(hd::op_traits<hd::plus>::idempotent);
  STATIC_REQUIRE(hd::op_traits<hd::maximum>::idempotent);
  STATIC_REQUIRE(hd::op_traits<hd::minimum>::idempotent);
  STATIC_REQUIRE_FALSE(hd::op_traits<hd::multiplies>::idempotent);
  STATIC_REQUIRE_FALSE(hd::op_traits<silent>::commutative);
  STATIC_REQUIRE(hd::op_traits<silent>::associative);
  STATIC_REQUIRE_FALSE(hd::op_traits<mean>::associative);
  STATIC_REQUIRE_FALSE(hd::op_traits<whole_vectors>::elementwise);
  STATIC_REQUIRE(hd::op_traits<foreign>::commutative);
}

TEST_CASE("an operator folds the elements that it takes", "[core][op_traits]") {
  STATIC_REQUIRE(hd::fold_operator<hd::plus, double>);
  STATIC_REQUIRE(hd::fold_operator<silent, int>);
  STATIC_REQUIRE(hd::fold_operator<whole_vectors, float>);
  STATIC_REQUIRE_FALSE(hd::fold_operator<whole_vectors, int>);
  STATIC_REQUIRE_FALSE(hd::fold_operator<mean, void*>);
}

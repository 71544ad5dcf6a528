#include <heddle/core/monoid.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

// A type of a user, with an infinity and no minus.
struct monoid_test_distance {
  double metres = 0;
  friend constexpr bool operator==(const monoid_test_distance&, const monoid_test_distance&) = default;
  friend constexpr bool operator<(const monoid_test_distance& a, const monoid_test_distance& b) {
    return a.metres < b.metres;
  }
};

template <>
struct std::numeric_limits<monoid_test_distance> {
  static constexpr bool is_specialized = true, has_infinity = true;
  static constexpr monoid_test_distance infinity() { return {std::numeric_limits<double>::infinity()}; }
};

namespace {

// An operator of a user: keeps the right operand unless it is the identity. Associative, not commutative.
struct last_given {
  template <class T>
  static constexpr T identity() {
    return T(-1);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    return b == T(-1) ? a : b;
  }
};

struct no_identity {
  constexpr int operator()(int a, int b) const { return a + b; }
};

template <class Op, class T>
void check_laws(const Op& op, T a, T b, T c) {
  CAPTURE(a, b, c);
  const T identity = Op::template identity<T>();
  CHECK(op(identity, a) == a);
  CHECK(op(a, identity) == a);
  CHECK(op(a, op(b, c)) == op(op(a, b), c));
  if (heddle::is_commutative<Op>) CHECK(op(a, b) == op(b, a));
}

}  // namespace

TEST_CASE("the operators are monoids, and say whether order matters", "[core][law]") {
  using namespace heddle;
  STATIC_REQUIRE(monoid<plus, int>);
  STATIC_REQUIRE(monoid<multiplies, double>);
  STATIC_REQUIRE(monoid<maximum, float>);
  STATIC_REQUIRE(monoid<minimum, std::int64_t>);
  STATIC_REQUIRE(monoid<last_given, int>);
  STATIC_REQUIRE_FALSE(monoid<no_identity, int>);
  STATIC_REQUIRE(is_commutative<plus>);
  STATIC_REQUIRE_FALSE(is_commutative<last_given>);
  STATIC_REQUIRE(plus{}(2, 3) == 5);
  STATIC_REQUIRE(maximum::identity<double>() == -std::numeric_limits<double>::infinity());
  STATIC_REQUIRE(maximum::identity<std::int8_t>() == -128);
  STATIC_REQUIRE(minimum::identity<monoid_test_distance>() == monoid_test_distance{INFINITY});
  STATIC_REQUIRE(minimum::identity<unsigned>() == (std::numeric_limits<unsigned>::max)());
}

TEST_CASE("the operators are associative and respect their identities", "[core][law][property]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int64_t> draw(-1000, 1000);
  for (int i = 0; i < 200; ++i) {
    const std::int64_t a = draw(random), b = draw(random), c = draw(random);
    check_laws(heddle::plus{}, a, b, c);
    check_laws(heddle::multiplies{}, a, b, c);
    check_laws(heddle::maximum{}, a, b, c);
    check_laws(heddle::minimum{}, a, b, c);
    check_laws(last_given{}, a, b, c);
    check_laws(heddle::maximum{}, static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
  }
}

TEST_CASE("a reduction by maximum or minimum never hides a NaN", "[core]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double other : {-1.0, 0.0, std::numeric_limits<double>::infinity()}) {
    CAPTURE(other);
    CHECK(std::isnan(heddle::maximum{}(nan, other)));
    CHECK(std::isnan(heddle::maximum{}(other, nan)));
    CHECK(std::isnan(heddle::minimum{}(nan, other)));
    CHECK(std::isnan(heddle::minimum{}(other, nan)));
  }
}

#include <heddle/testing/monoid_laws.hpp>

#include "catch.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace hd = heddle;
namespace ht = hd::testing;

namespace {
struct minus {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    return static_cast<T>(a - b);
  }
};
// Associative with an identity, but not commutative, though it says so.
struct right_one {
  static constexpr bool commutative = true;
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    return b == T(0) ? a : b;
  }
};
struct mean {
  static constexpr bool commutative = true;
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    return a == T(0) ? b : b == T(0) ? a : (a + b) / 2;
  }
};
// The monoid of attention over split keys: a maximum and a sum that is scaled to it.
struct scaled_sum {
  double largest = -std::numeric_limits<double>::infinity();
  double sum = 0;
};
struct combine {
  static constexpr bool commutative = true;
  template <class T>
  static T identity() {
    return {};
  }
  scaled_sum operator()(const scaled_sum& a, const scaled_sum& b) const {
    const double m = (std::max)(a.largest, b.largest);
    const auto scale = [m](const scaled_sum& x) { return x.sum == 0 ? 0 : x.sum * std::exp(x.largest - m); };
    return {m, scale(a) + scale(b)};
  }
};
struct nearly_same {
  bool operator()(const scaled_sum& a, const scaled_sum& b) const {
    return a.largest == b.largest && std::fabs(a.sum - b.sum) <= 1e-12 * (1 + std::fabs(a.sum));
  }
};
}  // namespace

TEST_CASE("heddle's operators are commutative monoids", "[testing][law]") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(seed);
    CHECK(ht::check_monoid<hd::plus, double>(seed).what == "");
    CHECK(ht::check_monoid<hd::plus, std::int32_t>(seed).what == "");
    CHECK(ht::check_monoid<hd::multiplies, double>(seed).what == "");
    CHECK(ht::check_monoid<hd::multiplies, std::uint16_t>(seed).what == "");
    CHECK(ht::check_monoid<hd::maximum, float>(seed).what == "");
    CHECK(ht::check_monoid<hd::minimum, float>(seed).what == "");
    CHECK(ht::check_monoid<hd::maximum, std::uint8_t>(seed).what == "");
    CHECK(ht::check_monoid<hd::minimum, std::int64_t>(seed).what == "");
  }
  constexpr std::array<float, 4> edges{1.0f, -std::numeric_limits<float>::infinity(),
                                       std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  CHECK(ht::check_monoid<hd::maximum, float>(std::span<const float>(edges)).what == "");
  CHECK(ht::check_monoid<hd::minimum, float>(std::span<const float>(edges)).what == "");
}

TEST_CASE("operators that break a law are reported with the values", "[testing]") {
  CHECK_THAT((ht::check_monoid<minus, int>().what), Catch::Matchers::Contains("seed 1, operator minus on int, a = "));
  CHECK_THAT((ht::check_monoid<minus, int>().what), Catch::Matchers::Contains("identity on the left changes a value"));
  constexpr std::array<int, 2> few{1, 2};
  CHECK(
      ht::check_monoid<right_one, int>(std::span<const int>(few)).what ==
      "operator right_one on int, a = 1, b = 2: op(a, b) is not op(b, a), though the operator is declared commutative");
  constexpr std::array<double, 3> numbers{1, 2, 4};
  CHECK_THAT((ht::check_monoid<mean, double>(std::span<const double>(numbers)).what),
             Catch::Matchers::Contains("c = ") && Catch::Matchers::Contains("op(a, op(b, c)) is not op(op(a, b), c)"));
  CHECK_FALSE(ht::check_monoid<hd::plus, int>(std::span<const int>()).ok());
}

TEST_CASE("a user's monoid of structs is checked with the user's values and tolerance", "[testing]") {
  const std::array<scaled_sum, 5> values{{{0, 1}, {3, 2.5}, {-700, 1e-3}, {12, 7}, {}}};
  CHECK(ht::check_monoid<combine, scaled_sum>(std::span<const scaled_sum>(values), combine{}, nearly_same{}).what ==
        "");
}

TEST_CASE("the laws of operators hold at compile time", "[testing][law]") {
  static constexpr std::array<int, 5> values{0, 1, -3, 7, 2};
  HEDDLE_STATIC_LAW((ht::operator_laws<hd::plus, int>(values)));
  HEDDLE_STATIC_LAW((ht::operator_laws<hd::maximum, int>(values)));
  STATIC_REQUIRE(ht::operator_laws<minus, int>(values).what == ht::problem::left_identity);
}

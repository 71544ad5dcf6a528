#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

namespace hd = heddle;

TEST_CASE("a number in words has as few digits as tell it from others", "[core][text]") {
  CHECK(hd::number_text(0.1) == "0.1");
  CHECK(hd::number_text(0.1f) == "0.1");
  CHECK(hd::number_text(1e-7) == "1e-07");
  CHECK(hd::number_text(-8.0) == "-8");
  CHECK(hd::number_text(3) == "3");
  CHECK(hd::number_text(std::numeric_limits<std::int64_t>::max()) == "9223372036854775807");
  CHECK(hd::number_text(std::nextafter(1.0, 2.0)) == "1.0000000000000002");
  CHECK(hd::number_text(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(hd::number_text(std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0)) == "nan");
  const hd::counter_random random(5, 0);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto x = std::bit_cast<double>(random.integer(i));
    if (!std::isfinite(x)) continue;
    INFO(x);
    CHECK(std::strtod(hd::number_text(x).c_str(), nullptr) == x);
  }
}

TEST_CASE("a number for people is rounded, and right for any size", "[core][text]") {
  CHECK(hd::rounded_text(5.17575519046642, 4) == "5.1758");
  CHECK(hd::rounded_text(9.99999, 4) == "10.0000");
  CHECK(hd::rounded_text(-0.5, 4) == "-0.5000");
  CHECK(hd::rounded_text(1234567.8, 4) == "1234567.8000");
  CHECK(hd::rounded_text(1234567.8, 0) == "1234568");
  CHECK(hd::digits_text(0.000731234, 1) == "0.000731");
  CHECK(hd::digits_text(-0.0521, 1) == "-0.0521");
  CHECK(hd::digits_text(54.52, 1) == "54.5");
  CHECK(hd::digits_text(9.7972, 4) == "9.7972");
  CHECK(hd::digits_text(0.0, 2) == "0.00");
  CHECK(hd::digits_text(1e-30, 2) == "0.000000000000");
  CHECK(hd::rounded_text(1e20, 4) == "1.0000e+20");
  CHECK(hd::rounded_text(1.7976931348623157e308, 4) == "1.7977e+308");
  CHECK(hd::rounded_text(-1.0 / 3, 20).size() == 23);
  CHECK(hd::rounded_text(std::numeric_limits<double>::infinity(), 4) == "inf");
}

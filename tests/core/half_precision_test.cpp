#include "catch.hpp"

#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/random.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace hd = heddle;

namespace {

// The value that these bits stand for, from the definition of the format.
template <class H>
double meaning(std::uint16_t bits) {
  constexpr int mantissa = std::is_same_v<H, hd::bf16> ? 7 : 10, bias = std::is_same_v<H, hd::bf16> ? 127 : 15;
  constexpr int top = (1 << (15 - mantissa)) - 1;
  const int exponent = (bits >> mantissa) & top, fraction = bits & ((1 << mantissa) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == top) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit pattern has its value as a float and comes back", "[core][half]", hd::bf16, hd::f16) {
  using H = TestType;
  int wrong = 0;
  for (std::uint32_t u = 0; u < 0x10000u; ++u) {
    const auto bits = static_cast<std::uint16_t>(u);
    const double want = meaning<H>(bits);
    const auto got = static_cast<float>(H::from_bits(bits));
    const H back(got);
    if (std::isnan(want))
      wrong +=
          std::isnan(got) && std::isnan(static_cast<float>(back)) && std::signbit(got) == ((u & 0x8000u) != 0) ? 0 : 1;
    else
      wrong += static_cast<double>(got) == want && std::signbit(got) == std::signbit(want) && back.bits == bits ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("a float goes to the nearest, ties to even, at every border between two neighbours", "[core][half]",
                   hd::bf16, hd::f16) {
  using H = TestType;
  const std::uint16_t infinity = (std::numeric_limits<H>::infinity)().bits;
  int wrong = 0;
  for (std::uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    // Above the largest number the next one would follow in the same steps, and is an infinity.
    const double step = low + 1 == infinity ? meaning<H>(low) - meaning<H>(static_cast<std::uint16_t>(low - 1))
                                            : meaning<H>(high) - meaning<H>(low);
    const auto middle = static_cast<float>(meaning<H>(low) + step / 2);  // exact: float has more digits
    const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, INFINITY);
    for (const float sign : {1.0f, -1.0f}) {
      const auto is = [&](float x, std::uint16_t want) {
        return H(sign * x).bits == (sign < 0 ? want | 0x8000 : want);
      };
      wrong += is(middle, low % 2 == 0 ? low : high) && is(below, low) && is(above, high) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  CHECK(H(INFINITY).bits == infinity);
  CHECK(H((std::numeric_limits<float>::max)()).bits == infinity);
  CHECK(H((std::numeric_limits<float>::denorm_min)()).bits == 0);
  // A NaN all of whose upper bits are zero.
  CHECK(std::isnan(static_cast<float>(H(std::bit_cast<float>(std::uint32_t{0x7f800001u})))));
  STATIC_REQUIRE(H(1.5f) == 1.5f);
  STATIC_REQUIRE(std::is_trivially_copyable_v<H>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<float, H>);
}

TEMPLATE_TEST_CASE("16-bit floats are folded by heddle's operators", "[core][half]", hd::bf16, hd::f16) {
  using H = TestType;
  STATIC_REQUIRE(hd::monoid<hd::plus, H>);
  STATIC_REQUIRE(hd::monoid<hd::maximum, H>);
  CHECK(hd::plus{}(H(1.5f), H(2.25f)) == 3.75f);
  CHECK(hd::maximum{}(hd::maximum::identity<H>(), H(-3.0f)) == -3.0f);
  CHECK(hd::minimum{}(hd::minimum::identity<H>(), H(7.0f)) == 7.0f);
}

TEST_CASE("the limits of 16-bit floats are those of their formats", "[core][half]") {
  using b = std::numeric_limits<hd::bf16>;
  using f = std::numeric_limits<hd::f16>;
  STATIC_REQUIRE((b::digits == 8 && b::digits10 == 2 && b::max_digits10 == 4 && !b::is_iec559));
  STATIC_REQUIRE((f::digits == 11 && f::digits10 == 3 && f::max_digits10 == 5 && f::is_iec559));
  STATIC_REQUIRE((b::min_exponent == -125 && b::max_exponent == 128));
  STATIC_REQUIRE((f::min_exponent == -13 && f::max_exponent == 16));
  STATIC_REQUIRE((b::min_exponent10 == -37 && b::max_exponent10 == 38));
  STATIC_REQUIRE((f::min_exponent10 == -4 && f::max_exponent10 == 4));
  STATIC_REQUIRE(((b::min)() == 0x1p-126f && (b::max)() == 0x1.fep127f && b::lowest() == -0x1.fep127f));
  STATIC_REQUIRE(((f::min)() == 0x1p-14f && (f::max)() == 65504.0f && f::lowest() == -65504.0f));
  STATIC_REQUIRE((b::epsilon() == 0x1p-7f && b::denorm_min() == 0x1p-133f));
  STATIC_REQUIRE((f::epsilon() == 0x1p-10f && f::denorm_min() == 0x1p-24f));
  STATIC_REQUIRE((b::infinity().bits == 0x7f80 && b::quiet_NaN().bits == 0x7fc0 && b::signaling_NaN().bits == 0x7fa0));
  STATIC_REQUIRE((f::infinity().bits == 0x7c00 && f::quiet_NaN().bits == 0x7e00 && f::signaling_NaN().bits == 0x7d00));
}

TEST_CASE("stochastic rounding to bf16 has an exact mean", "[core][half]") {
  const hd::counter_random random(20240607, 5);
  for (std::uint64_t i = 0; i < 60; ++i) {
    // Any finite bits but the largest step: magnitudes from subnormal numbers up.
    const auto u = static_cast<std::uint32_t>(random.integer(i));
    if ((u & 0x7f800000u) >= 0x7f000000u) continue;
    const float x = std::bit_cast<float>(u);
    const hd::bf16 low = hd::bf16::from_bits(static_cast<std::uint16_t>(u >> 16));
    const hd::bf16 high = hd::bf16::from_bits(static_cast<std::uint16_t>((u >> 16) + 1));
    std::int64_t ups = 0, others = 0;
    for (std::uint32_t r = 0; r < 0x10000u; ++r) {
      const hd::bf16 got = hd::round_stochastically(x, r);
      ups += got.bits == high.bits ? 1 : 0;
      others += got.bits != high.bits && got.bits != low.bits ? 1 : 0;
    }
    CAPTURE(x);
    CHECK(others == 0);
    const double step = static_cast<double>(high) - static_cast<double>(low);
    CHECK(static_cast<double>(low) + step * static_cast<double>(ups) / 65536.0 == static_cast<double>(x));
  }
  for (const std::uint32_t r : {0u, 0xffffu}) {
    CHECK(hd::round_stochastically(2.5f, r) == 2.5f);
    CHECK(hd::round_stochastically(-INFINITY, r) == -INFINITY);
    CHECK(std::isnan(static_cast<float>(hd::round_stochastically(std::bit_cast<float>(0x7f800001u), r))));
  }
}

// tests/core/float8_test.cpp: conversions of numbers of 8 bits, against their definition.
#include "catch.hpp"

#include <heddle/core/float8.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;

namespace {

// The value of a code by the definition: sign, exponent and mantissa.
double value_of(int code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
  const double one = 1 << mantissa_bits;
  const double size =
      exponent == 0 ? std::ldexp(mantissa / one, 1 - bias) : std::ldexp(1 + mantissa / one, exponent - bias);
  return (code & 0x80) != 0 ? -size : size;
}

// The nearest of the finite numbers; of two the one with an even code; the largest for what is beyond.
template <class F>
int nearest(const std::map<double, int>& finite, double x) {
  const double size = std::abs(x);
  const auto above = finite.lower_bound(size);
  if (above == finite.end()) return finite.rbegin()->second;
  if (above->first == size || above == finite.begin()) return above->second;
  const auto below = std::prev(above);
  const double up = above->first - size, down = size - below->first;
  if (up != down) return up < down ? above->second : below->second;
  return above->second % 2 == 0 ? above->second : below->second;
}

template <class F>
void check(int mantissa_bits, int bias, int largest_code) {
  std::map<double, int> finite;
  for (int code = 0; code < 256; ++code) {  // all of them, there and back
    CAPTURE(code);
    const float x = F::from_bits(static_cast<std::uint8_t>(code));
    const int size = code & 0x7f;
    if (size <= largest_code) {
      CHECK(static_cast<double>(x) == value_of(code, mantissa_bits, bias));
      CHECK(std::signbit(x) == (code >= 128));
      CHECK(F(x).bits == code);
      if (code < 128) finite[static_cast<double>(x)] = code;
    } else if (mantissa_bits == 2 && size == 0x7c) {
      CHECK((std::isinf(x) && std::signbit(x) == (code >= 128)));
      CHECK((F(x).bits & 0x7f) == largest_code);
    } else {
      CHECK(std::isnan(x));
      CHECK(std::isnan(static_cast<float>(F(x))));
    }
  }
  CHECK(static_cast<double>(F::largest) == finite.rbegin()->first);
  std::int64_t wrong = 0;
  const auto compare = [&](float x) {
    const int sign = std::signbit(x) ? 0x80 : 0;
    wrong += F(x).bits != (nearest<F>(finite, static_cast<double>(x)) | sign);
  };
  // Every float whose lower 12 bits are zero, and both neighbours: all codes, all ties and what is next to them are among them.
  for (std::uint32_t upper = 0; upper < (1u << 20); ++upper)
    for (const std::uint32_t lower : {0xffffffffu, 0u, 1u}) {
      const float x = __builtin_bit_cast(float, (upper << 12) + lower);
      if (!std::isnan(x)) compare(x);
    }
  CHECK(wrong == 0);
  CHECK((F(std::numeric_limits<float>::infinity()).bits & 0x7f) == largest_code);
  CHECK(static_cast<float>(F(-std::numeric_limits<float>::infinity())) == -F::largest);
  CHECK(std::isnan(static_cast<float>(F(std::numeric_limits<float>::quiet_NaN()))));
}

// The numbers of the lines of a section of tests/golden/float8_golden.txt, which PyTorch made; one or two in a line.
std::vector<std::pair<std::uint32_t, std::uint32_t>> golden(const std::string& section, bool pairs) {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/float8_golden.txt");
  std::string name;
  std::size_t lines = 0;
  while (in >> name && name != section) {
  }
  in >> lines >> std::hex;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> all(lines);
  for (auto& [first, second] : all) {
    in >> first;
    if (pairs) in >> second;
  }
  REQUIRE(in);
  return all;
}
// All 256 codes as floats, and all 65536 numbers of bf16 as codes, are those of PyTorch.
template <class F>
void check_golden(const std::string& name) {
  const auto codes = golden(name + "_codes", false);
  REQUIRE(codes.size() == 256);
  for (std::size_t code = 0; code < codes.size(); ++code) {
    CAPTURE(code);
    const float x = F::from_bits(static_cast<std::uint8_t>(code)),
                expected = __builtin_bit_cast(float, codes[code].first);
    if (std::isnan(expected))
      CHECK((std::isnan(x) && std::signbit(x) == std::signbit(expected)));
    else
      CHECK(__builtin_bit_cast(std::uint32_t, x) == codes[code].first);
  }
  const auto runs = golden(name + "_runs", true);
  REQUIRE((!runs.empty() && runs.front().first == 0));
  std::size_t run = 0;
  std::vector<std::uint32_t> wrong;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if (run + 1 < runs.size() && runs[run + 1].first == bits) ++run;
    if (F(__builtin_bit_cast(float, bits << 16)).bits != runs[run].second) wrong.push_back(bits);
  }
  CHECK(run + 1 == runs.size());
  CHECK(wrong.empty());
}

}  // namespace

TEST_CASE("every number of bf16 becomes the code that PyTorch gives it, and every code its float",
          "[core][float8][golden]") {
  check_golden<hd::float8_e4m3>("e4m3");
  check_golden<hd::float8_e5m2>("e5m2");
}
TEST_CASE("numbers of 8 bits are what their definition says, and rounded to the nearest", "[core][float8]") {
  SECTION("e4m3") {
    check<hd::float8_e4m3>(3, 7, 0x7e);
  }
  SECTION("e5m2") {
    check<hd::float8_e5m2>(2, 15, 0x7b);
  }
  // Published: largest, smallest normal and smallest subnormal numbers of both (arXiv:2209.05433, table 1).
  STATIC_REQUIRE(float(hd::float8_e4m3::from_bits(0x7e)) == 448.0f);
  STATIC_REQUIRE(float(hd::float8_e4m3::from_bits(0x08)) == 0x1p-6f);
  STATIC_REQUIRE(float(hd::float8_e4m3::from_bits(0x01)) == 0x1p-9f);
  STATIC_REQUIRE(float(hd::float8_e5m2::from_bits(0x7b)) == 57344.0f);
  STATIC_REQUIRE(float(hd::float8_e5m2::from_bits(0x04)) == 0x1p-14f);
  STATIC_REQUIRE(float(hd::float8_e5m2::from_bits(0x01)) == 0x1p-16f);
}

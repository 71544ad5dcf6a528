// tests/core/exact_sum_test.cpp: exact sums are the same in any order and for any cut, block by block, too.
#include "catch.hpp"

#include <heddle/core/exact_sum.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace hd = heddle;

TEST_CASE("exact sums are the same in any order", "[core][determinism]") {
  const hd::counter_random random(7, 1);
  std::vector<double> x(3000);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::ldexp(random.uniform(i), static_cast<int>(random.integer(i + x.size()) % 1000) - 700);
  x[0] = 0, x[1] = std::numeric_limits<double>::denorm_min();
  hd::exact_sum forward, backward, parts;
  for (const double v : x) forward.add(v);
  for (std::size_t i = x.size(); i-- > 0;) backward.add(x[i]);
  for (std::size_t first = 0; first < 3; ++first) {
    hd::exact_sum some;
    for (std::size_t i = first; i < x.size(); i += 3) some.add(x[i]);
    some.carry();
    for (std::size_t k = 0; k < hd::exact_sum::size; ++k) parts.words()[k] += some.words()[k];
  }
  const double sum = forward.value();
  CHECK(std::bit_cast<std::uint64_t>(sum) == std::bit_cast<std::uint64_t>(backward.value()));
  CHECK(std::bit_cast<std::uint64_t>(sum) == std::bit_cast<std::uint64_t>(parts.value()));
  std::sort(x.begin(),
            x.end());  // from the smallest up in long double: right to a few units in the last place of a double
  const long double near = std::accumulate(x.begin(), x.end(), 0.0L);
  CHECK(std::abs(static_cast<double>((static_cast<long double>(sum) - near) / near)) < 1e-15);

  hd::exact_sum small, bad;
  for (int i = 0; i < 10; ++i) small.add(0.1);
  CHECK(small.value() == 1.0);  // ten times the double nearest to 0.1 is nearest to 1
  const std::array<float, 2> row{3.0f, std::numeric_limits<float>::infinity()};
  bad.add_squares(std::span<const float>(row));
  CHECK(std::isnan(bad.value()));
}

TEST_CASE("squares in blocks are those one by one", "[core][determinism]") {
  for (const int spread : {1, 20, 60, 200}) {  // in the exponents; the last ones leave bits below those of a block
    const hd::counter_random random(8, static_cast<std::uint64_t>(spread));
    std::vector<float> x(5000);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(
          std::ldexp(random.uniform(i) - 0.5,
                     -static_cast<int>(random.integer(i + x.size()) % static_cast<std::uint64_t>(spread))));
    std::fill(x.begin() + 1024, x.begin() + 2048, 0.0f);
    hd::exact_sum blocks, singly, cut;
    blocks.add_squares(std::span<const float>(x));
    for (const float v : x) singly.add(static_cast<double>(v) * static_cast<double>(v));
    for (std::size_t i = 0; i < x.size(); i += 1700)
      cut.add_squares(std::span<const float>(x).subspan(i, (std::min)(std::size_t{1700}, x.size() - i)));
    CAPTURE(spread);
    const auto bits = std::bit_cast<std::uint64_t>(singly.value());
    CHECK(std::bit_cast<std::uint64_t>(blocks.value()) == bits);
    CHECK(std::bit_cast<std::uint64_t>(cut.value()) == bits);
    x[700] = std::numeric_limits<float>::quiet_NaN();
    hd::exact_sum bad;
    bad.add_squares(std::span<const float>(x));
    CHECK(std::isnan(bad.value()));
  }
}

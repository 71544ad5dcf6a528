// Codings of integers as spikes: they give the integers back, products by spikes are integer products, and shares of Gaussian rows are the published ones.
#include <heddle/compute/spike_coding.hpp>
#include <heddle/core/random.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace co = heddle::compute;

static_assert(co::integer_of_spikes<co::signed_bit_spikes>(-5, 3) == -5 && co::signed_bit_spikes::steps(7) == 3);
static_assert(co::twos_complement_spikes::spike(-1, 3, 4) == 1 && co::twos_complement_spikes::steps(7) == 4);
static_assert(co::binary_spikes::steps(0) == 1 && co::bit_spikes::steps(0) == 1 && co::bit_spikes::steps(8) == 4);

template <class Coding>
void spikes_give_integers_back(std::int32_t from, std::int32_t to) {
  for (std::int32_t n = from; n <= to; ++n) {
    const std::int64_t most = std::max(std::abs(from), std::abs(to));
    bool right = true;
    for (const std::int64_t steps : {Coding::steps(std::abs(n)), Coding::steps(most)})
      right = right && co::integer_of_spikes<Coding>(n, steps) == n;
    CAPTURE(n);
    CHECK(right);
  }
}
template <class Coding>
void spikes_multiply(const std::vector<std::int32_t>& integers, const std::vector<std::int8_t>& weights) {
  const std::size_t n = integers.size(), rows = weights.size() / n;
  std::vector<std::int64_t> by_spikes(rows, -1), products(rows, 0);
  co::add_by_spikes<Coding>(weights, integers, by_spikes);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < n; ++i) products[r] += std::int64_t{weights[r * n + i]} * integers[i];
  CHECK(by_spikes == products);
}

}  // namespace

TEST_CASE("every coding of spikes gives the integers back, and products by spikes are integer products", "[compute]") {
  spikes_give_integers_back<co::binary_spikes>(0, 40);
  spikes_give_integers_back<co::bit_spikes>(0, 300);
  spikes_give_integers_back<co::ternary_spikes>(-40, 40);
  spikes_give_integers_back<co::signed_bit_spikes>(-300, 300);
  spikes_give_integers_back<co::twos_complement_spikes>(-300, 300);
  CHECK_THROWS_WITH(co::integer_of_spikes<co::bit_spikes>(-1, 4), Catch::Matchers::Contains("numbers >= 0, got -1"));

  const std::uint64_t seed = 31;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 0);
  std::vector<std::int8_t> weights(9 * 37);
  std::uint64_t at = 0;
  for (std::int8_t& w : weights) w = static_cast<std::int8_t>(static_cast<int>(random.integer(at++) % 255) - 127);
  std::vector<float> row(37);
  for (float& x : row) x = static_cast<float>(random.normal(at++));
  row[5] = 60;  // far from the others
  const float threshold = co::spike_threshold(row);
  std::vector<std::int32_t> integers, magnitudes, none(37, 0);
  for (const float x : row) integers.push_back(co::spike_integer(x, threshold));
  for (const std::int32_t n : integers) magnitudes.push_back(std::abs(n));
  for (const auto* some : {&integers, &none}) {
    spikes_multiply<co::ternary_spikes>(*some, weights);
    spikes_multiply<co::signed_bit_spikes>(*some, weights);
    spikes_multiply<co::twos_complement_spikes>(*some, weights);
  }
  spikes_multiply<co::binary_spikes>(magnitudes, weights);
  spikes_multiply<co::bit_spikes>(magnitudes, weights);
}

TEST_CASE("spikes of Gaussian rows are as many as the sheet says", "[compute]") {
  const std::uint64_t seed = 32;
  CAPTURE(seed);
  const heddle::counter_random random(seed, 0);
  constexpr std::size_t columns = 512, rows = 400;
  const double shares[] = {0.997, 0.953, 0.865};
  double before = 1;
  for (int k = 2; k <= 4; ++k) {
    std::vector<std::int32_t> integers;
    for (std::size_t r = 0; r < rows; ++r) {
      std::vector<float> row(columns);
      for (std::size_t i = 0; i < columns; ++i) row[i] = static_cast<float>(3 * random.normal(r * columns + i));
      const float threshold = co::spike_threshold(row, k);
      for (const float x : row) integers.push_back(co::spike_integer(x, threshold));
    }
    const auto few = std::count_if(integers.begin(), integers.end(), [](std::int32_t n) { return std::abs(n) <= 7; });
    CAPTURE(k);
    CHECK(std::abs(static_cast<double>(few) / static_cast<double>(integers.size()) - shares[k - 2]) < 0.003);
    std::vector<std::int32_t> inside;  // in three steps
    for (const std::int32_t n : integers) inside.push_back(std::clamp(n, -7, 7));
    const co::spike_counts c = co::count_spikes<co::signed_bit_spikes>(inside, 3);
    CHECK(c.sparsity() < before);  // falls as k grows
    before = c.sparsity();
    if (k == 3) CHECK(std::abs(c.sparsity() - 0.545) < 0.02);
    CHECK(co::to_string(c).find("modelled") != std::string::npos);
  }
}

TEST_CASE("thresholds of spikes have limits", "[compute][error]") {
  CHECK(co::spike_threshold({}) == 1e-5f);
  const std::vector<float> zeros(4, 0.0f), large(4, 1e9f);
  CHECK(co::spike_threshold(zeros) == 1e-5f);
  CHECK(co::spike_threshold(large) == 1e4f);
  CHECK(co::spike_integer(2.5f, 1.0f) == 2);  // ties to even
  CHECK_THROWS_WITH(co::spike_integer(1e9f, 1.0f), Catch::Matchers::Contains("at most 2^24"));
  CHECK_THROWS_AS(co::spike_integer(std::nanf(""), 1.0f), heddle::layout_error);
  std::vector<std::int64_t> y(2);
  const std::vector<std::int8_t> weights(5);
  const std::vector<std::int32_t> integers(3);
  CHECK_THROWS_WITH(co::add_by_spikes<co::ternary_spikes>(weights, integers, y),
                    Catch::Matchers::Contains("should be 6, got 5"));
}

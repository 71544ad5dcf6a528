// tests/plan/layer_partition_test.cpp: layers over stages: as good as trying all ways.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/layer_partition.hpp>
#include <heddle/plan/stage_limits.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace hd = heddle;
namespace pl = heddle::plan;

namespace {

double greatest(const pl::layer_costs& costs, const std::vector<int>& counts) {
  const auto of = pl::stage_costs(costs, counts);
  return *std::max_element(of.begin(), of.end());
}

// The best of all ways, tried one after the other.
double best_of_all(const pl::layer_costs& costs, int stages, int least, std::vector<int>& counts, int left) {
  if (stages == 1) {
    if (left < least) return std::numeric_limits<double>::infinity();
    counts.push_back(left);
    const double cost = greatest(costs, counts);
    counts.pop_back();
    return cost;
  }
  double best = std::numeric_limits<double>::infinity();
  for (int k = least; k <= left; ++k) {
    counts.push_back(k);
    best = std::min(best, best_of_all(costs, stages - 1, least, counts, left - k));
    counts.pop_back();
  }
  return best;
}

}  // namespace

TEST_CASE("equal layers are distributed evenly, heavy ends have fewer", "[plan][layers]") {
  CHECK(pl::partition_layers({std::vector<double>(12, 1.0)}, 4).counts == std::vector<int>{3, 3, 3, 3});
  const auto heavy = pl::partition_layers({std::vector<double>(30, 1.0), 1.0, 1.0}, 4);
  CHECK(heavy.counts == std::vector<int>{7, 8, 8, 7});
  CHECK(heavy.bottleneck == 8);
  CHECK(heavy.balance == 1);
  // A head as heavy as five layers: it has a stage almost to itself.
  CHECK(pl::partition_layers({std::vector<double>(11, 1.0), 0.0, 5.0}, 4).counts == std::vector<int>{4, 4, 3, 0});
  CHECK(pl::partition_layers({std::vector<double>(11, 1.0), 0.0, 5.0}, 4, 1).counts == std::vector<int>{4, 3, 3, 1});
  CHECK(pl::partition_layers({{}, 2.0, 3.0}, 1).bottleneck == 5);
  CHECK(pl::partition_layers({{1.0}}, 3).bottleneck == 1);
}

TEST_CASE("no way of distributing layers has a faster slowest stage", "[plan][layers]") {
  const hd::counter_random random(20261121, 0);
  INFO("seed 20261121");
  std::uint64_t draw = 0;
  for (int round = 0; round < 400; ++round) {
    const int n = 1 + static_cast<int>(random.integer(draw++) % 11);
    const int stages = 1 + static_cast<int>(random.integer(draw++) % 5);
    const int least = n >= stages ? static_cast<int>(random.integer(draw++) % 2) : 0;
    pl::layer_costs costs;
    for (int i = 0; i < n; ++i) costs.layers.push_back(round % 3 == 0 ? 1.0 : random.uniform(draw++));
    costs.first = round % 4 == 0 ? 0.0 : 2 * random.uniform(draw++);
    costs.last = round % 5 == 0 ? 0.0 : 3 * random.uniform(draw++);
    const auto found = pl::partition_layers(costs, stages, least);
    std::vector<int> counts;
    const double best = best_of_all(costs, stages, least, counts, n);
    INFO("round " << round);
    REQUIRE(std::abs(found.bottleneck - best) <= 1e-12 * best);
    REQUIRE(std::abs(greatest(costs, found.counts) - best) <= 1e-12 * best);
    REQUIRE(*std::min_element(found.counts.begin(), found.counts.end()) >= least);
  }
}

TEST_CASE("up to 16 stages the slowest stage is that of trying all ways", "[plan][layers]") {
  // All ways of 20 layers over 16 stages of at least one: C(19, 15) = 3876.
  const hd::counter_random random(7, 1);
  pl::layer_costs costs;
  for (std::uint64_t i = 0; i < 20; ++i) costs.layers.push_back(0.5 + random.uniform(i));
  costs.first = 0.3;
  costs.last = 1.1;
  for (const int stages : {12, 14, 16}) {
    std::vector<int> counts;
    const double best = best_of_all(costs, stages, 1, counts, 20);
    CHECK(std::abs(pl::partition_layers(costs, stages, 1).bottleneck - best) <= 1e-12 * best);
  }
}

TEST_CASE("with speeds and memory of stages no cut is better", "[plan][layers]") {
  // All cuts of 12 layers over 4 stages, with stages that may be empty: C(15, 3) = 455 a round.
  const hd::counter_random random(20261129, 4);
  INFO("seed 20261129");
  std::uint64_t draw = 0;
  int without = 0;
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    const int least = static_cast<int>(random.integer(draw++) % 3), stages = 4;
    pl::layer_costs costs;
    pl::stage_limits limits;
    const bool own_bytes = round % 2 == 0;
    limits.bytes.resize(own_bytes ? 4 : 1);
    for (int i = 0; i < 12; ++i) {
      costs.layers.push_back(random.uniform(draw++));
      for (auto& b : limits.bytes) b.layers.push_back(static_cast<double>(random.integer(draw++) % 1000));
    }
    costs.last = random.uniform(draw++);
    for (auto& b : limits.bytes) b.first = static_cast<double>(random.integer(draw++) % 1500);
    for (int s = 0; s < stages; ++s) {
      if (round % 3 > 0) limits.speeds.push_back(0.5 + random.uniform(draw++));
      limits.budgets.push_back(static_cast<double>(500 + random.integer(draw++) % 4000));
    }
    double best = std::numeric_limits<double>::infinity();
    for (int a = 0; a <= 12; ++a)
      for (int b = a; b <= 12; ++b)
        for (int c = b; c <= 12; ++c) {
          const std::vector<int> counts{a, b - a, c - b, 12 - c};
          if (*std::min_element(counts.begin(), counts.end()) < least) continue;
          double most = 0;
          for (std::size_t s = 0; s < 4; ++s) {
            if (pl::stage_costs(limits.bytes[own_bytes ? s : 0], counts)[s] > limits.budgets[s])
              most = std::numeric_limits<double>::infinity();
            most = std::max(most, pl::stage_costs(costs, counts)[s] / (limits.speeds.empty() ? 1.0 : limits.speeds[s]));
          }
          best = std::min(best, most);
        }
    const auto found = pl::partition_layers(costs, limits, least);
    REQUIRE(found.fits() == std::isfinite(best));
    if (!found.fits()) {
      CHECK(std::isinf(found.bottleneck));
      ++without;
      continue;
    }
    REQUIRE(std::abs(found.bottleneck - best) <= 1e-12 * best);
    for (std::size_t s = 0; s < 4; ++s)
      REQUIRE(pl::stage_costs(limits.bytes[own_bytes ? s : 0], found.counts)[s] <= limits.budgets[s]);
    REQUIRE(*std::min_element(found.counts.begin(), found.counts.end()) >= least);
  }
  CHECK(without > 20);
  CHECK(without < 280);
}

TEST_CASE("two clusters of different speed share layers as Holmes does", "[plan][layers]") {
  const auto shares = [](int layers, double ratio) {
    return pl::partition_layers({std::vector<double>(static_cast<std::size_t>(layers), 1.0)}, {.speeds = {ratio, 1.0}})
        .counts;
  };
  const auto published = [&](double ratio) {
    return shares(30, ratio) == std::vector<int>{16, 14} && shares(48, ratio) == std::vector<int>{26, 22};
  };
  for (int i = 1; i <= 300; ++i) {
    const double ratio = 1 + i / 1000.0;  // 26/23 = 1.1304..., 17/14 = 1.2142...
    CAPTURE(ratio);
    CHECK(published(ratio) == (ratio > 26.0 / 23 && ratio <= 17.0 / 14));
  }
  CHECK(pl::partition_layers({std::vector<double>(30, 1.0)}, {.speeds = {1.2, 1.0}}).bottleneck == 14);
}

TEST_CASE("the unit of costs does not matter", "[plan][layers]") {
  for (const double unit : {1.0, 1e-170, 1e-300, 1e200}) {
    CAPTURE(unit);
    pl::layer_costs costs{{1, 1, 1, 1, 4}};
    for (double& c : costs.layers) c *= unit;
    CHECK(pl::partition_layers(costs, 3).counts == std::vector<int>{2, 2, 1});
  }
}

TEST_CASE("costs and numbers that make no sense are refused", "[plan][layers]") {
  CHECK_THROWS_AS(pl::partition_layers({{1e308, 1e308, 1e308}}, 2, 1), hd::config_error);
  CHECK_THROWS_AS(pl::partition_layers({{1.0}}, 0), hd::config_error);
  CHECK_THROWS_AS(pl::partition_layers({{1.0, -1.0}}, 2), hd::config_error);
  CHECK_THROWS_AS(pl::partition_layers({{1.0, std::nan("")}}, 2), hd::config_error);
  CHECK_THROWS_WITH(pl::partition_layers({{1.0, 1.0}}, 3, 1), Catch::Matchers::Contains("3 stages of at least 1 layers "
                                                                                        "need more than the 2"));
  CHECK_THROWS_AS(pl::stage_costs({{1.0, 1.0}}, std::vector<int>{1}), hd::config_error);
  CHECK_THROWS_WITH(pl::partition_layers({{1.0, 1.0}}, {.speeds = {1.0, 0.0}}), Catch::Matchers::Contains("speeds"));
  CHECK_THROWS_WITH(pl::partition_layers({{1.0, 1.0}}, {.speeds = {1.0, 1.0}, .budgets = {1.0}}),
                    Catch::Matchers::Contains("one for each of the 2 stages; got 2, 0 and 1"));
  CHECK_THROWS_WITH(pl::partition_layers({{1.0, 1.0}}, {.bytes = {{{1.0}}}, .budgets = {1.0}}),
                    Catch::Matchers::Contains("bytes of 1 layers for the 2"));
  CHECK_THROWS_AS(pl::partition_layers({{1.0, 1.0}}, {.budgets = {-1.0}}), hd::config_error);
  CHECK_THROWS_AS(pl::partition_layers({{1.0, 1.0}}, {.speeds = {}}), hd::config_error);
}

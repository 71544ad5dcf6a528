// tests/plan/circuit_matchings_test.cpp: traffic as matchings: exact sums, fewest matchings, brute force, MoE traffic near the bound.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/circuit_matchings.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace circuit_matchings_tests {

namespace hd = heddle;
namespace plan = heddle::plan;
using Catch::Matchers::Contains;

plan::rank_traffic at_random(std::mt19937& random, int n, int most, double density) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(n * n), 0);
  std::uniform_real_distribution<double> unit(0, 1);
  for (std::int64_t& b : bytes)
    if (unit(random) < density) b = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  return {n, bytes};
}

// Tokens of a layer with `k` of 4 n experts each, whose popularity falls off as Zipf's law says.
plan::rank_traffic mixture(std::mt19937& random, int n, double skew) {
  const int tokens = 4096, k = 2, width = 4096;
  std::vector<double> popularity(static_cast<std::size_t>(4 * n));
  for (std::size_t e = 0; e < popularity.size(); ++e) popularity[e] = 1 / std::pow(static_cast<double>(e + 1), skew);
  std::shuffle(popularity.begin(), popularity.end(), random);
  std::discrete_distribution<int> expert(popularity.begin(), popularity.end());
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(n * n), 0);
  for (int from = 0; from < n; ++from)
    for (int t = 0; t < tokens * k; ++t) bytes[static_cast<std::size_t>(from * n + expert(random) / 4)] += 2 * width;
  return {n, bytes};
}

// Whether each rank sends and receives once at most in each matching, and all of them together are the traffic.
bool exactly(const std::vector<plan::matching>& rounds, const plan::rank_traffic& traffic) {
  const int n = traffic.ranks();
  std::vector<std::int64_t> sum(static_cast<std::size_t>(n * n), 0);
  for (const plan::matching& round : rounds) {
    std::vector<int> sends(static_cast<std::size_t>(n), 0), receives(static_cast<std::size_t>(n), 0);
    for (const plan::circuit_message& m : round) {
      if (m.bytes <= 0 || m.from == m.to) return false;
      if (++sends[static_cast<std::size_t>(m.from)] > 1 || ++receives[static_cast<std::size_t>(m.to)] > 1) return false;
      sum[static_cast<std::size_t>(m.from * n + m.to)] += m.bytes;
    }
    if (round.empty()) return false;
  }
  return sum == traffic.bytes();
}
std::int64_t together(const std::vector<plan::matching>& rounds) {
  std::int64_t sum = 0;
  for (const plan::matching& round : rounds)
    sum += std::max_element(round.begin(), round.end(), [](auto& a, auto& b) { return a.bytes < b.bytes; })->bytes;
  return sum;
}

// The least number of matchings of whole messages, by trying every color for every message.
int fewest_by_trial(const plan::rank_traffic& t) {
  std::vector<plan::circuit_message> all;
  for (int i = 0; i < t.ranks(); ++i)
    for (int j = 0; j < t.ranks(); ++j)
      if (t(i, j) > 0) all.push_back({i, j, t(i, j)});
  std::vector<int> color(all.size(), -1);
  const auto fits = [&](auto&& self, std::size_t k, int colors) -> bool {
    if (k == all.size()) return true;
    for (int c = 0; c < colors; ++c) {
      bool free = true;
      for (std::size_t o = 0; o < k; ++o)
        free = free && !(color[o] == c && (all[o].from == all[k].from || all[o].to == all[k].to));
      if (!free) continue;
      color[k] = c;
      if (self(self, k + 1, colors)) return true;
    }
    return false;
  };
  int colors = 0;
  while (!fits(fits, 0, colors)) ++colors;
  return colors;
}

TEST_CASE("matchings sum up to the traffic, each with one message of a rank at most", "[plan][property]") {
  const auto seed = GENERATE(3u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const int n = 1 + static_cast<int>(random() % 12);
    const double density = static_cast<double>(1 + random() % 10) / 10;
    const auto traffic = at_random(random, n, trial % 3 == 0 ? 3 : 1'000'000, density);
    CAPTURE(trial, n, density, traffic.bytes());
    const auto fewest = plan::matchings(traffic);
    REQUIRE(exactly(fewest, traffic));
    REQUIRE(static_cast<int>(fewest.size()) == traffic.degree());
    const auto cut = plan::birkhoff(traffic);
    REQUIRE(exactly(cut, traffic));
    REQUIRE(static_cast<int>(cut.size()) <= (n - 1) * (n - 1) + 1);
    REQUIRE(together(cut) == traffic.most_bytes());
    const auto around = plan::shifts(traffic);
    REQUIRE(exactly(around, traffic));
    REQUIRE(static_cast<int>(around.size()) <= n - 1);
    REQUIRE(together(fewest) >= traffic.most_bytes());
  }
}

TEST_CASE("the number of matchings is the least that trials find", "[plan][property]") {
  const auto seed = GENERATE(4u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 60; ++trial) {
    const auto traffic = at_random(random, 1 + static_cast<int>(random() % 4), 5, 0.6);
    CAPTURE(trial, traffic.bytes());
    REQUIRE(static_cast<int>(plan::matchings(traffic).size()) == fewest_by_trial(traffic));
  }
}

TEST_CASE("traffic of experts is planned near the bound, or on links where they are faster", "[plan]") {
  const double bandwidth = 100e9;
  for (const int n : {16, 64})
    for (const double skew : {0.0, 0.6, 1.2}) {
      std::mt19937 random(static_cast<unsigned>(n) + static_cast<unsigned>(10 * skew));
      const auto traffic = mixture(random, n, skew);
      const auto start = hd::topologies::ring(n, {0, bandwidth / 2});
      double before = 0;
      for (const double delay : {0.0, 1e-6, 10e-6, 100e-6, 1e-3, 10e-3}) {
        const plan::circuit_switch fabric{0, bandwidth, 1, delay};
        const auto made = plan::plan_traffic(traffic, start, fabric);
        const double bound = plan::least_matched_seconds(traffic, fabric);
        CAPTURE(n, skew, delay, plan::to_string(made), bound);
        CHECK(bound == Approx(static_cast<double>(traffic.most_bytes()) / bandwidth + traffic.degree() * delay));
        for (std::size_t k = 0; k < 4; ++k) {
          CHECK(made.seconds <= made.seconds_of[k]);
          if (k > 0) CHECK(made.seconds_of[k] >= bound * (1 - 1e-12));
        }
        CHECK(made.seconds == made.seconds_of[static_cast<std::size_t>(made.way)]);
        CHECK(made.seconds >= before);
        before = made.seconds;
        if (delay >= 10e-6 && made.way != plan::traffic_way::fixed) CHECK(made.seconds <= 1.1 * bound);
        if (delay == 0.0) CHECK(made.seconds == Approx(bound).epsilon(1e-12));  // Birkhoff's, or what is as good
        if (delay == 10e-3) CHECK(made.way == plan::traffic_way::fixed);
        if (made.way != plan::traffic_way::fixed) CHECK(exactly(made.rounds, traffic));
      }
    }
}

TEST_CASE("what fixed links take is what their loads say", "[plan]") {
  // Four ranks on a ring of 1 byte a second: from 0 to 2 both ways, half each.
  const plan::rank_traffic traffic(4, {9, 3, 8, 0,  //
                                       0, 0, 0, 0,  //
                                       0, 5, 0, 0,  //
                                       0, 0, 0, 0});
  CHECK(traffic(0, 0) == 0);
  CHECK(traffic.most_bytes() == 11);
  CHECK(traffic.degree() == 2);
  const plan::circuit_switch fabric{0.5, 1, 1, 2};
  const auto made = plan::plan_traffic(traffic, hd::topologies::ring(4, {0.5, 1}), fabric);
  CHECK(made.way == plan::traffic_way::fixed);
  CHECK(made.seconds == Approx(1 + 7));  // 0 to 1 carries 3 + 4; two links on the longest way
  CHECK(made.rounds.empty());
  CHECK(made.seconds_of[1] == Approx(2 * 2.5 + 8 + 3));
  // Without links the circuits are all there is.
  const auto dark = plan::plan_traffic(traffic, hd::topology(4), fabric);
  CHECK(dark.way == plan::traffic_way::fewest);
  CHECK(dark.seconds == Approx(16));
  CHECK(dark.seconds_of[0] == std::numeric_limits<double>::infinity());
  CHECK_THAT(plan::to_string(dark), Contains("fewest matchings: 16000000.0 us in 2 matchings\nfixed links: inf us\n"));
  CHECK(plan::plan_traffic({4, std::vector<std::int64_t>(16, 0)}, hd::topology(4), fabric).seconds == 0);
  // Sparse traffic: two matchings where shifts take seven.
  std::vector<std::int64_t> sparse(64, 0);
  for (int r = 0; r < 8; ++r)
    sparse[static_cast<std::size_t>(8 * r + 7 - r)] = sparse[static_cast<std::size_t>(8 * r + (r ^ 2))] = 10;
  const plan::rank_traffic few(8, sparse);
  CHECK(plan::matchings(few).size() == 2);
  CHECK(plan::shifts(few).size() > 4);
}

TEST_CASE("traffic that cannot be is refused", "[plan]") {
  const auto refused = [](int ranks, std::vector<std::int64_t> bytes) -> std::string {
    try {
      plan::rank_traffic(ranks, std::move(bytes));
    } catch (const hd::config_error& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(refused(2, {0, 1, 2}) ==
        "heddle: traffic of 2 ranks, at least 1, has an entry for each pair of them; got 3 entries");
  CHECK_THAT(refused(0, {}), Contains("traffic of 0 ranks, at least 1"));
  CHECK_THAT(refused(-1, {1}), Contains("traffic of -1 ranks"));
  CHECK(refused(2, {0, 1, -4, 0}) == "heddle: traffic is 0 bytes or more; rank 1 sends -4 to rank 0");
  CHECK_THAT(refused(2, {-1, 0, 0, 0}), Contains("rank 0 sends -1 to rank 0"));
  const std::int64_t half = std::int64_t{1} << 52, most = std::int64_t{1} << 53;
  CHECK(refused(2, {0, most, most, 0}) == "no error");
  CHECK_THAT(refused(2, {0, most + 1, 0, 0}), Contains("rank 0 sends more"));
  CHECK_THAT(refused(3, {0, half, half + 1, 0, 0, 0, 0, 0, 0}), Contains("rank 0 sends more"));
  CHECK_THAT(refused(3, {0, 0, 0, half, 0, 0, half + 1, 0, 0}), Contains("rank 0 receives more"));
  CHECK_THAT(refused(2, {0, 0, std::numeric_limits<std::int64_t>::max(), 0}), Contains("receives more"));
  const plan::rank_traffic traffic(2, {0, 1, 1, 0});
  CHECK_THROWS_WITH(plan::plan_traffic(traffic, hd::topology(3), {}),
                    Contains("traffic of 2 ranks on a fabric of 3 ranks"));
  CHECK_THROWS_WITH(plan::plan_traffic(traffic, hd::topology(2), {0, 0, 1, 0}), Contains("a circuit switch needs"));
}

}  // namespace circuit_matchings_tests

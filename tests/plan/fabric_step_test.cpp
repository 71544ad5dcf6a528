// tests/plan/fabric_step_test.cpp: steps on switched fabrics against networkx, one collective's plan, computed ratios.
#include "catch.hpp"

#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/round_load.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/fabric_step.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace fabric_step_tests {

namespace hd = heddle;
namespace plan = heddle::plan;
namespace algo = heddle::algo;
using Catch::Matchers::Contains;
using hd::dp, hd::tp;
using any_mesh = hd::mesh<hd::axis<tp>, hd::axis<dp>>;
using any_step = plan::fabric_step<any_mesh>;

void call(any_step& step, const std::string& what, int axis, std::int64_t bytes) {
  const auto on = [&]<class Axis>(hd::type_list<Axis>) {
    if (what == "all_reduce") step.all_reduce<Axis>(bytes);
    if (what == "all_gather") step.all_gather<Axis>(bytes);
    if (what == "reduce_scatter") step.reduce_scatter<Axis>(bytes);
  };
  axis == 0 ? on(hd::type_list<tp>{}) : on(hd::type_list<dp>{});
}
// A ring in some order, so that all ranks are reached, and more links.
hd::topology fabric_at_random(std::mt19937& random, const plan::circuit_switch& optics) {
  hd::topology t(8);
  std::vector<int> order{0, 1, 2, 3, 4, 5, 6, 7};
  for (std::size_t i = 7; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  for (std::size_t i = 0; i < 8; ++i) t.add_link(order[i], order[(i + 1) % 8], optics.port());
  for (auto k = random() % 12; k > 0; --k)
    if (const int a = static_cast<int>(random() % 8), b = static_cast<int>(random() % 8); a != b)
      t.add_link(a, b, optics.port());
  return t;
}
any_step step_at_random(std::mt19937& random, double switching) {
  const plan::circuit_switch optics{3e-6, 100e9, 1 << random() % 3, switching};
  any_step step(random() % 2 == 0 ? any_mesh(2, 4) : any_mesh(4, 2), fabric_at_random(random, optics), optics);
  step.offer<algo::rabenseifner, algo::ring>();
  const char* names[]{"all_reduce", "all_gather", "reduce_scatter"};
  for (auto k = 1 + random() % 6; k > 0; --k) {
    step.compute(random() % 2 == 0 ? 0 : 1e-4);
    call(step, names[random() % 3], static_cast<int>(random() % 2), std::int64_t{1} << (12 + random() % 14));
  }
  return step;
}

TEST_CASE("loads and plans of steps are those that networkx finds", "[plan][fabric]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/fabric_golden.txt");
  REQUIRE(in);
  int cases = 0, wins = 0, switched = 0;
  double load_error = 0, plan_error = 0;
  const auto differs = [](double& most, double a, double b) {
    most = std::max(most, a == b ? 0 : std::abs(a - b) / std::max(std::abs(b), 1e-300));
  };
  for (std::string word; in >> word; ++cases) {
    REQUIRE(word == "case");
    int t = 0, d = 0, ports = 0, calls = 0;
    std::size_t links = 0;
    double switching = 0;
    in >> t >> d >> ports >> switching >> links >> calls;
    hd::topology start(t * d);
    for (std::size_t l = 0; l < links; ++l) {
      int from = 0, to = 0;
      double seconds = 0, width = 0;
      in >> from >> to >> seconds >> width;
      start.add_link(from, to, {seconds, width, hd::link_kind::optical});
    }
    any_step step(any_mesh(t, d), start, {3e-6, 100e9, ports, switching});
    step.offer<algo::rabenseifner, algo::ring>();
    std::int64_t first_bytes = 0;
    int first_axis = 0;
    for (int c = 0; c < calls; ++c) {
      std::string what;
      int axis = 0;
      std::int64_t bytes = 0;
      double compute = 0;
      in >> what >> axis >> bytes >> compute;
      step.compute(compute);
      call(step, what, axis, bytes);
      if (c == 0) {
        REQUIRE(what == "all_reduce");
        first_bytes = bytes;
        first_axis = axis;
      }
    }
    double fixed = 0, together = 0, hidden = 0;
    std::size_t states = 0;
    in >> fixed >> together >> hidden >> states;
    const plan::fabric_plan made = step.plan(), covered = step.plan({.hide_behind_computation = true});
    differs(plan_error, made.fixed, fixed);
    differs(plan_error, made.seconds, together);
    differs(plan_error, covered.seconds, hidden);
    CHECK(made.states.size() == states);
    wins += made.seconds < made.fixed ? 1 : 0;
    switched += made.switches;

    std::vector<std::vector<int>> groups(static_cast<std::size_t>(first_axis == 0 ? d : t));
    for (int i = 0; i < t; ++i)
      for (int j = 0; j < d; ++j) groups[static_cast<std::size_t>(first_axis == 0 ? j : i)].push_back(i * d + j);
    const hd::round_table rounds = hd::round_groups(
        algo::rabenseifner::rounds<hd::comm_operation::all_reduce>(first_axis == 0 ? t : d, 0), groups, t * d);
    const hd::load_map loads(rounds, start, first_bytes, 1);
    for (std::size_t l = 0; l < links; ++l) {
      double bytes = 0;
      in >> bytes;
      differs(load_error, loads.bytes(static_cast<int>(l)), bytes);
    }
    REQUIRE(in);
  }
  CHECK(cases == 54);
  CHECK(load_error < 1e-12);
  CHECK(plan_error < 1e-12);
  CHECK(wins > 10);
  CHECK(switched > 50);
}

TEST_CASE("a step of one call is planned as reconfigure plans it", "[plan][fabric]") {
  const auto seed = GENERATE(5u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 30; ++trial) {
    const double switching = trial % 3 == 0 ? 0 : std::pow(10, -6 + static_cast<double>(random() % 4));
    const plan::circuit_switch optics{3e-6, 100e9, 2, switching};
    const hd::topology start = fabric_at_random(random, optics);
    any_step step(any_mesh(8, 1), start, optics);
    step.offer<algo::rabenseifner>().all_reduce<tp>(1 << 24);
    const hd::round_table rounds = algo::rabenseifner::rounds<hd::comm_operation::all_reduce>(8, 0);
    const plan::fabric_states states(rounds, start, optics);
    const plan::state_costs costs(states, 1 << 24, 1);
    const plan::fabric_plan made = step.plan();
    CHECK(made.seconds == Approx(plan::reconfigure(costs, switching).seconds).epsilon(1e-13));
    CHECK(made.fixed == Approx(plan::static_seconds(costs)).epsilon(1e-13));
    if (switching > 0) continue;
    double matched = 0;  // without a delay: the sum of the rounds where each is fastest
    for (int k = 0; k < costs.rounds(); ++k) {
      double least = costs(k, 0);
      for (int s = 1; s < costs.states(); ++s) least = std::min(least, costs(k, s));
      matched += least;
    }
    CHECK(made.seconds == Approx(matched).epsilon(1e-13));
  }
}

TEST_CASE("steps planned together are never slower than call by call or than one topology", "[plan][fabric]") {
  const unsigned seed = 11;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int slower = 0, unhidden = 0, gains = 0, sums_differ = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const any_step step = step_at_random(random, std::pow(10, -6 + static_cast<double>(random() % 5)));
    const plan::fabric_plan made = step.plan(), hidden = step.plan({.hide_behind_computation = true});
    const double bound = made.seconds * (1 - 1e-12);
    slower += made.call_by_call < bound || made.single < bound || made.fixed < bound ? 1 : 0;
    unhidden += hidden.seconds > made.seconds * (1 + 1e-12) ? 1 : 0;
    gains += made.seconds < 0.999 * std::min(made.call_by_call, made.single) ? 1 : 0;
    double sum = 0;
    for (const plan::planned_call& c : made.calls) sum += c.seconds;
    sums_differ += sum > made.seconds * (1 + 1e-12) || made.hidden != 0 ? 1 : 0;
  }
  CHECK(slower == 0);
  CHECK(unhidden == 0);
  CHECK(sums_differ == 0);
  CHECK(gains > 20);
}

TEST_CASE("32 layers of width 8,192 over tp 8 x dp 16 gain what was computed for a torus", "[plan][fabric]") {
  const double delays[]{1e-6, 10e-6, 100e-6, 1e-3, 10e-3}, ratios[]{1.66, 1.65, 1.62, 1.36, 1.04};
  for (std::size_t i = 0; i < 5; ++i) {
    const plan::circuit_switch optics{3e-6, 100e9, 4, delays[i]};
    plan::fabric_step step(hd::mesh<hd::axis<tp, 8>, hd::axis<dp, 16>>{}, hd::topologies::torus({8, 16}, optics.port()),
                           optics);
    step.offer<algo::rabenseifner, algo::ring, algo::bidirectional_ring>();
    const double layer = 24.0 * 2048 * 8192 * 8192 / 8 / 400e12;
    for (int l = 0; l < 64; ++l) step.compute(layer / 2).all_reduce<tp>(2048LL * 8192 * 2);
    for (int l = 0; l < 32; ++l) {
      for (int half = 0; half < 2; ++half) step.compute(layer).all_reduce<tp>(2048LL * 8192 * 2);
      step.all_reduce<dp>(12LL * 8192 * 8192 / 8 * 2);
    }
    const plan::fabric_plan made = step.plan();
    CHECK(std::abs(made.fixed / made.seconds - ratios[i]) < 0.01);
    CHECK(made.states.size() == 12);
    if (i != 3) continue;
    const plan::fabric_plan hidden = step.plan({.hide_behind_computation = true});
    CHECK(std::abs(hidden.fixed / hidden.seconds - 1.49) < 0.01);
    CHECK(hidden.hidden > 0);
    CHECK(made.call_by_call / made.seconds == Approx(1.10).margin(0.01));
    CHECK_THAT(to_string(hidden), Contains("planned together") && Contains("switching hidden") &&
                                      Contains("all_reduce over axis 0, 33554432 bytes: "));
  }
}

TEST_CASE("uneven traffic in a step takes no longer than plan_traffic's ways", "[plan][fabric]") {
  std::mt19937 random(3);
  for (const double switching : {0.0, 1e-6, 1e-4, 1e-2}) {
    const plan::circuit_switch optics{1e-6, 100e9, 1, switching};
    std::vector<std::int64_t> bytes(64);
    for (std::int64_t& b : bytes) b = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 10'000'000);
    const plan::rank_traffic traffic(8, bytes);
    const hd::topology start = hd::topologies::ring(8, optics.port());
    any_step step(any_mesh(8, 1), start, optics);
    step.all_to_all_v<tp>(traffic);
    const plan::fabric_plan made = step.plan();
    const plan::traffic_plan alone = plan::plan_traffic(traffic, start, optics);
    CHECK(made.fixed <= alone.seconds_of[0] * (1 + 1e-12));  // shifts on the first topology are among the ways
    const double least = std::min({alone.seconds_of[0], alone.seconds_of[1], alone.seconds_of[3]});
    CHECK(made.seconds <= least * (1 + 1e-12));
    CHECK(step.all_to_all_v<tp>(traffic).plan().states.size() == made.states.size());
    // Each round alone is at least as long as its longest message at the bandwidth of a rank.
    CHECK(made.seconds >= static_cast<double>(traffic.most_bytes()) / optics.bytes_per_second);
  }
}

TEST_CASE("steps that cannot be are refused with what was expected", "[plan][fabric]") {
  const plan::circuit_switch optics{1e-6, 1e9, 1, 1e-6};
  CHECK_THROWS_WITH(any_step(any_mesh(2, 2), hd::topologies::ring(5), optics),
                    Contains("a mesh of 4 ranks on a fabric of 5 ranks"));
  CHECK_THROWS_AS(any_step(any_mesh(2, 2), hd::topologies::ring(4), {0, 0, 1, 0}), hd::config_error);
  any_step step(any_mesh(2, 2), hd::topologies::ring(4, optics.port()), optics);
  CHECK_THROWS_WITH(step.all_reduce<tp>(8),
                    Contains("no algorithm that was offered has rounds for all_reduce of 2 ranks"));
  step.offer<algo::ring>();
  CHECK_THROWS_WITH(step.all_reduce<tp>(-1), Contains("a call of -1 bytes"));
  CHECK_THROWS_WITH(step.compute(-1), Contains("0 seconds or more"));
  CHECK_THROWS_AS(step.compute(std::numeric_limits<double>::quiet_NaN()), hd::config_error);
  CHECK_THROWS_WITH(step.all_to_all_v<tp>(plan::rank_traffic(3, std::vector<std::int64_t>(9, 1))),
                    Contains("traffic of 3 ranks over axis 0 of 2"));
  CHECK(step.plan().seconds == 0);
  const hd::round_table ring = algo::ring::rounds<hd::comm_operation::all_gather>(2, 0);
  CHECK_THROWS_WITH(hd::round_groups(ring, {{0, 1, 2}}, 4), Contains("group 0 has 3 ranks; the rounds are for 2"));
  CHECK_THROWS_WITH(hd::round_groups(ring, {{0, 1}, {1, 2}}, 4), Contains("rank 1 of group 1"));
}

}  // namespace fabric_step_tests

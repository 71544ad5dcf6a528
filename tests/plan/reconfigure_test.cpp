#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/reconfigure.hpp>

#include "catch.hpp"
#include "collective/plain_rounds.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;
namespace topologies = heddle::topologies;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

plan::circuit_switch optics(int ports, double delay, double alpha = 3e-6, double bandwidth = 100e9) {
  return {alpha, bandwidth, ports, delay};
}

// The least over all sequences of states, each tried.
double brute_force(const plan::state_costs& costs, double delay, int then) {
  double best = infinity;
  std::vector<int> states(static_cast<std::size_t>(costs.rounds()), 0);
  for (;;) {
    double sum = 0;
    int before = 0;
    for (int k = 0; k < costs.rounds(); ++k) {
      const int s = states[static_cast<std::size_t>(k)];
      sum += costs(k, s) + (s == before ? 0 : delay);
      before = s;
    }
    if (then != plan::stay && before != then) sum += delay;
    best = std::min(best, sum);
    std::size_t digit = 0;
    while (digit < states.size() && ++states[digit] == costs.states()) states[digit++] = 0;
    if (digit == states.size()) return best;
  }
}

}  // namespace

TEST_CASE("the table of 128 ranks: halving and doubling on a ring and tori, by size and delay", "[plan][pccl]") {
  struct row {
    const char* name;
    hd::topology start;
    int ports;
    std::int64_t bytes;
    double ring, fixed;
    std::array<double, 4> microseconds;
    std::array<int, 4> switches;
  };
  const auto on = [](std::initializer_list<int> extents, int ports) {
    return topologies::torus(extents, optics(ports, 0).port());
  };
  const std::int64_t mb = 1'000'000;
  const std::vector<row> table{
      {"ring", on({128}, 2), 2, mb, 782, 1829, {74.8, 178.9, 819.6, 1828.6}, {13, 11, 5, 0}},
      {"ring", on({128}, 2), 2, 16 * mb, 1080, 17827, {372.5, 489.5, 1371, 7143}, {13, 13, 9, 5}},
      {"ring", on({128}, 2), 2, 128 * mb, 3302, 137282, {2595, 2712, 3828, 12306}, {13, 13, 11, 9}},
      {"8x16", on({8, 16}, 4), 4, mb, 782, 295.1, {74.8, 180.5, 295.1, 295.1}, {13, 11, 0, 0}},
      {"8x16", on({8, 16}, 4), 4, 16 * mb, 1080, 2742, {372.5, 489.5, 1476, 2742}, {13, 13, 9, 0}},
      {"4x4x8", on({4, 4, 8}, 6), 6, 16 * mb, 1080, 2073, {372.5, 489.5, 1361, 2073}, {13, 13, 7, 0}},
  };
  const hd::round_table rounds = plain_rounds::halving_doubling(128);
  const hd::round_table ring = plain_rounds::ring(128, true);
  for (const row& r : table) {
    const plan::fabric_states states(rounds, r.start, optics(r.ports, 0));
    CHECK(states.size() == 8);  // the start and seven pairings
    const plan::state_costs costs(states, r.bytes / 4, 4);
    CAPTURE(r.name, r.bytes);
    CHECK(plan::static_seconds(costs) * 1e6 == Approx(r.fixed).epsilon(0.005));
    // The ring at its best: neighbours joined by all ports.
    const plan::fabric_states once(ring, r.start, optics(r.ports, 0));
    CHECK(plan::reconfigure(once, r.bytes / 4, 4).seconds * 1e6 == Approx(r.ring).epsilon(0.005));
    double delay = 1e-6;
    for (std::size_t i = 0; i < 4; ++i, delay *= 10) {
      const plan::reconfiguration made = plan::reconfigure(costs, delay);
      CAPTURE(delay);
      CHECK(made.seconds * 1e6 == Approx(r.microseconds[i]).epsilon(0.005));
      CHECK(made.switches == r.switches[i]);
    }
  }
}

TEST_CASE("a plan is as fast as the best of all sequences of states", "[plan][pccl][law]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto between = [&](double low, double high) {  // on a logarithmic scale
    return std::exp(std::uniform_real_distribution<>(std::log(low), std::log(high))(random));
  };
  for (int i = 0; i < 50; ++i) {
    const int kind = std::uniform_int_distribution<>(0, 3)(random);
    const int n = kind == 0 ? 4 : 1 << std::uniform_int_distribution<>(2, 4)(random);
    const int ports = kind == 1 ? 4 : 2;
    const plan::circuit_switch fabric = optics(ports, between(1e-7, 1e-2), between(1e-7, 1e-5), between(1e9, 1e12));
    const hd::topology start =
        kind == 1 ? topologies::torus({2, n / 2}, fabric.port()) : topologies::ring(n, fabric.port());
    const hd::round_table rounds = kind == 0   ? plain_rounds::shifts(n)
                                   : kind == 3 ? plain_rounds::doubling(n)
                                               : plain_rounds::halving_doubling(n);
    const plan::fabric_states states(rounds, start, fabric);
    const plan::state_costs costs(states, static_cast<std::int64_t>(between(1e2, 1e8)), 4);
    for (const int then : {plan::stay, 0}) {
      const plan::reconfiguration made = plan::reconfigure(costs, fabric.reconfiguration_seconds, then);
      const double best = brute_force(costs, fabric.reconfiguration_seconds, then);
      CHECK(made.seconds == Approx(best).epsilon(1e-12));
      // What the plan says of itself is what its states cost.
      double sum = made.switches * fabric.reconfiguration_seconds;
      int switches = 0;
      for (int k = 0; k < costs.rounds(); ++k) {
        sum += costs(k, made.states[static_cast<std::size_t>(k)]);
        switches += made.switches_before(k) ? 1 : 0;
      }
      switches += made.switches_before(costs.rounds()) ? 1 : 0;
      CHECK(made.seconds == Approx(sum).epsilon(1e-12));
      CHECK(made.switches == switches);
    }
  }
}

TEST_CASE("what a plan takes is concave and piecewise linear in the delay", "[plan][pccl][law]") {
  const hd::round_table rounds = plain_rounds::halving_doubling(16);
  for (const std::int64_t elements : {std::int64_t{160}, std::int64_t{16000}, std::int64_t{1600000}}) {
    const plan::circuit_switch fabric = optics(2, 0);
    const plan::fabric_states states(rounds, topologies::ring(16, fabric.port()), fabric);
    const plan::state_costs costs(states, elements, 4);
    double matched = 0;
    for (int k = 0; k < costs.rounds(); ++k) matched += costs(k, states.matched(k));
    CHECK(plan::reconfigure(costs, 0).seconds == Approx(matched).epsilon(1e-14));
    const auto never = plan::reconfigure(costs, 1e9);
    CHECK(never.seconds == plan::static_seconds(costs));
    CHECK(never.switches == 0);

    // Between two delays with the same number of switches the time grows by that number; it never falls, and the number
    // of switches never rises.
    plan::reconfiguration before = plan::reconfigure(costs, 1e-9);
    double at = 1e-9;
    for (double delay = 1.1e-9; delay < 1; delay *= 1.1) {
      const plan::reconfiguration now = plan::reconfigure(costs, delay);
      CAPTURE(elements, delay);
      CHECK(now.seconds >= before.seconds);
      CHECK(now.switches <= before.switches);
      CHECK(now.seconds - before.seconds <= before.switches * (delay - at) * (1 + 1e-9) + 1e-18);
      CHECK(now.seconds - before.seconds >= now.switches * (delay - at) * (1 - 1e-9) - 1e-18);
      before = now;
      at = delay;
    }
  }
}

TEST_CASE("more topologies to choose from never make a plan slower", "[plan][pccl][law]") {
  const hd::round_table rounds = plain_rounds::halving_doubling(16);
  for (const double delay : {0.0, 1e-6, 1e-5, 1e-4, 1e-3})
    for (const std::int64_t elements : {std::int64_t{16}, std::int64_t{16000}, std::int64_t{16000000}}) {
      const plan::circuit_switch fabric = optics(4, delay);
      const hd::topology start = topologies::ring(16, fabric.port());
      double before = infinity;
      std::vector<hd::topology> more;
      for (const hd::topology& next :
           {topologies::torus({4, 4}, fabric.port()), topologies::hypercube(4, fabric.port()),
            topologies::torus({2, 8}, fabric.port())}) {
        const plan::fabric_states states(rounds, start, fabric, more);
        const double now = plan::reconfigure(states, elements, 4).seconds;
        CHECK(now <= before);
        before = now;
        more.push_back(next);
      }
    }
}

TEST_CASE("circuits give a rank's whole bandwidth to its peers, as far as ports go", "[plan][pccl]") {
  const hd::round_table pairs = plain_rounds::doubling(8);
  const hd::topology matched = plan::circuits_of(pairs, 1, optics(4, 0));
  CHECK(matched.links().size() == 8);
  for (const hd::link& l : matched.links()) {
    CHECK(l.to == (l.from ^ 2));
    CHECK(l.bytes_per_second == 100e9);
  }
  const hd::round_table both = plain_rounds::exchange(8, 2);
  CHECK(plan::ports_needed(both, 0) == 2);
  const hd::topology two = plan::circuits_of(both, 0, optics(4, 0));
  CHECK(two.links().size() == 16);
  for (const hd::link& l : two.links()) CHECK(l.bytes_per_second == 50e9);
  const hd::topology odd = plan::circuits_of(both, 0, optics(3, 0));  // one of three ports each
  for (const hd::link& l : odd.links()) CHECK(l.bytes_per_second == Approx(100e9 / 3));
  CHECK_THROWS_WITH(plan::circuits_of(both, 0, optics(1, 0)),
                    "heddle: round 0 needs 2 circuits at a rank, which has 1 ports");

  // Rounds that ports do not suffice for stay on what is there.
  const hd::round_table all = plain_rounds::shifts(8, true);
  const plan::fabric_states states(all, topologies::ring(8, optics(2, 0).port()), optics(2, 0));
  CHECK(states.size() == 1);
  CHECK(states.matched(0) == -1);
  CHECK(plan::reconfigure(states, 6400, 4).switches == 0);
  // Each rank has somebody to send to in every round of the shifts: always realizable, by one port.
  const hd::round_table shifts = plain_rounds::shifts(8);
  for (int k = 0; k < 7; ++k) CHECK(plan::ports_needed(shifts, k) == 1);
}

TEST_CASE("a state is named, a plan has segments, and a switch pays or does not", "[plan][pccl]") {
  const hd::round_table rounds = plain_rounds::halving_doubling(8);
  const plan::circuit_switch fabric = optics(2, 1e-6);
  const plan::fabric_states states(rounds, topologies::ring(8, fabric.port()), fabric,
                                   {topologies::hypercube(3, fabric.port())});
  CHECK(states.name(0) == "the start");
  CHECK(states.name(1) == "topology 1");
  CHECK(states.name(states.matched(4)) == "the circuits of round 1");
  CHECK(states.find(topologies::hypercube(3, fabric.port())) == 1);
  CHECK(states.find(topologies::full(8)) == -1);
  const auto made = plan::reconfigure(states, 8'000'000, 4);
  CHECK(made.switches == 5);
  CHECK(made.states == std::vector<int>{2, 3, 4, 4, 3, 2});
  using segment = plan::reconfiguration::segment;
  CHECK(made.segments() == std::vector<segment>{{0, 1, 2}, {1, 2, 3}, {2, 4, 4}, {4, 5, 3}, {5, 6, 2}});
  CHECK(made.last == 2);
  const auto back = plan::reconfigure(states, 8'000'000, 4, 0);
  CHECK(back.switches == 6);
  CHECK(back.last == 0);
  CHECK(back.switches_before(6));

  // A single round: switching and returning pays exactly if it gains more than two delays.
  hd::round_builder one(hd::comm_operation::all_gather, 8, 0, 8, 1);
  for (int r = 0; r < 8; ++r) one.send(0, r, r ^ 4).block(r);
  const hd::round_table single = one.take();
  const plan::fabric_states two(single, topologies::ring(8, fabric.port()), fabric);
  const plan::state_costs costs(two, 8'000'000, 4);
  const double gain = costs(0, 0) - costs(0, 1);
  CHECK(plan::reconfigure(costs, gain / 2 * 0.999, 0).switches == 2);
  CHECK(plan::reconfigure(costs, gain / 2 * 1.001, 0).switches == 0);
  CHECK(plan::reconfigure(costs, gain * 0.999).switches == 1);
  CHECK(plan::reconfigure(costs, gain * 1.001).switches == 0);
}

TEST_CASE("a session begins each collective where the one before left the circuits", "[plan][pccl]") {
  const hd::round_table rounds = plain_rounds::halving_doubling(8);
  const plan::circuit_switch fabric = optics(2, 1e-6);
  const hd::topology ring = topologies::ring(8, fabric.port());
  plan::fabric_session session(ring, fabric);
  const auto first = session.run(rounds, 8'000'000, 4);
  CHECK(first.switches == 5);
  CHECK_FALSE(session.at_home());
  // The first round wants the circuits of the last one: one switch less.
  const auto second = session.run(rounds, 8'000'000, 4);
  CHECK(second.switches == 4);
  CHECK(second.seconds == Approx(first.seconds - 1e-6));
  const auto third = session.run(rounds, 8'000'000, 4, plan::afterwards::go_home);
  CHECK(third.switches == 5);
  CHECK(session.at_home());
  CHECK(session.switches() == 14);
  CHECK(session.seconds() == Approx(first.seconds + second.seconds + third.seconds));
  // Small vectors at home: nothing is switched, and nothing is paid for staying.
  plan::fabric_session still(ring, optics(2, 1));
  CHECK(still.run(rounds, 8, 4, plan::afterwards::go_home).switches == 0);
  CHECK(still.at_home());
}

TEST_CASE("plans are made at compile time", "[plan][pccl]") {
  constexpr auto& made = plan::static_reconfiguration<[] {
    const hd::round_table rounds = plain_rounds::halving_doubling(8);
    constexpr plan::circuit_switch fabric{3e-6, 100e9, 2, 1e-6};
    return plan::reconfigure(plan::fabric_states(rounds, topologies::ring(8, fabric.port()), fabric), 8'000'000, 4);
  }>;
  STATIC_REQUIRE(made.switches == 5);
  STATIC_REQUIRE(made.states == std::array{1, 2, 3, 3, 2, 1});
}

TEST_CASE("wrong switches are refused", "[plan][pccl]") {
  const hd::round_table rounds = plain_rounds::doubling(4);
  const hd::topology ring = topologies::ring(4);
  CHECK_THROWS_AS(plan::fabric_states(rounds, ring, {1e-6, 0, 1, 0}), hd::config_error);
  CHECK_THROWS_AS(plan::fabric_states(rounds, ring, {1e-6, 1, 0, 0}), hd::config_error);
  CHECK_THROWS_AS(plan::fabric_states(rounds, ring, {-1, 1, 1, 0}), hd::config_error);
  CHECK_THROWS_AS(plan::fabric_states(rounds, topologies::ring(3), {1e-6, 1, 1, 0}), hd::comm_error);
  plan::fabric_session nowhere(hd::topology(8), {1e-6, 1e9, 2, 1e-6});
  const hd::round_table all = plain_rounds::shifts(8, true);
  CHECK_THROWS_AS(nowhere.run(all, 64, 4), hd::config_error);
}

TEST_CASE("collectives of some ranks leave the fabric to those of all", "[plan][pccl]") {
  const plan::circuit_switch fabric = optics(2, 1e-6);
  const hd::topology ring = topologies::ring(16, fabric.port());
  const hd::round_table half = plain_rounds::halving_doubling(8), all = plain_rounds::halving_doubling(16);
  plan::fabric_session session(ring, fabric);
  CHECK(session.run(half, 8'000'000, 4).switches == 5);
  CHECK(session.now().ranks() == 16);
  CHECK(session.run(all, 8'000'000, 4).switches == 7);  // each round but the turning one has circuits of its own
  session.run(half, 8'000'000, 4, plan::afterwards::go_home);
  CHECK(session.at_home());
}

TEST_CASE("a plan is refused a state that is none and a delay below zero", "[plan][pccl][error]") {
  using Catch::Matchers::Contains;
  const plan::circuit_switch fabric = optics(2, 1e-6);
  const hd::round_table rounds = plain_rounds::halving_doubling(8);
  const plan::fabric_states states(rounds, topologies::ring(8, fabric.port()), fabric);
  CHECK_THROWS_WITH(plan::reconfigure(states, 8, 4, states.find(topologies::full(8))),
                    Contains("cannot be left in state -1; it has 4 states"));
  CHECK_THROWS_WITH(plan::reconfigure(states, 8, 4, 4), Contains("cannot be left in state 4"));
  CHECK_THROWS_AS(plan::reconfigure(plan::state_costs(states, 8, 4), -1e-6), hd::config_error);
  CHECK_THROWS_AS(plan::reconfigure(plan::state_costs(states, 8, 4), std::nan("")), hd::config_error);
}

TEST_CASE("sizes below zero, or beyond what 63 bits count, are refused", "[plan][pccl][error]") {
  using Catch::Matchers::Contains;
  const plan::circuit_switch fabric = optics(2, 1e-6);
  const hd::round_table rounds = plain_rounds::halving_doubling(8);
  const hd::topology ring = topologies::ring(8, fabric.port());
  const plan::fabric_states states(rounds, ring, fabric);
  CHECK_THROWS_WITH(plan::reconfigure(states, -800, 4),
                    Contains("heddle: reconfigure: a collective of -800 elements of 4 bytes each"));
  CHECK_THROWS_WITH(plan::reconfigure(states, 800, -4), Contains("of 800 elements of -4 bytes each"));
  CHECK_THROWS_AS(plan::reconfigure(states, -800, -4), hd::config_error);
  CHECK_THROWS_AS(plan::reconfigure(states, std::int64_t{1} << 62, 2), hd::config_error);
  CHECK(plan::reconfigure(states, 0, 4).possible());
  plan::fabric_session session(ring, fabric);
  CHECK_THROWS_AS(session.run(rounds, -8, 4), hd::config_error);
  CHECK(session.seconds() == 0);
}

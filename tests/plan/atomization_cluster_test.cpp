// tests/plan/atomization_cluster_test.cpp: jobs that cut themselves against rigid ones on a simulated cluster of cut GPUs.
#include "mig_study.hpp"

#include "catch.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using namespace mig_study;

namespace {

void compare_at_loads(std::uint64_t seeds) {
  // Set-up and finish together are at most 5 % of the shortest gap.
  constexpr double overhead = 40;
  int cases = 0, fuller = 0;
  for (const double load : {0.5, 0.65, 0.8, 0.95}) {
    std::array<double, 4> wait{}, used{};
    double bound = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      INFO("load " << load << ", seed " << seed);
      const study s = make_study(seed, load, 300);
      const auto rigid = easy(s, overhead);
      const auto one = atomized(s, overhead, sja::response_ratio{});
      const auto several = atomized(s, overhead, sja::response_ratio{.cut = 0.5}, sja::interval_clearing{true});
      CHECK(one.wait <= rigid.wait);
      CHECK(one.first_wait <= rigid.first_wait);
      // Few jobs: all are served, and it is chance which of them run when the last arrives.
      CHECK(one.utilisation >= rigid.utilisation - 0.001);
      ++cases;
      fuller += one.utilisation >= rigid.utilisation;
      const auto oracle = foreseen(s, overhead, one);
      CHECK(oracle.wait <= one.wait);
      const double most = sim::most_utilisation(s.cluster, s.jobs);
      bound += most;
      const std::array<const sim::cluster_outcome*, 4> all{&rigid, &one, &several, &oracle};
      for (std::size_t i = 0; i < 4; ++i) {
        CHECK(all[i]->utilisation <= most);
        wait[i] += all[i]->wait;
        used[i] += all[i]->utilisation;
      }
    }
    INFO("load " << load);
    CHECK(wait[1] < 0.75 * wait[0]);
    CHECK(wait[2] < 0.85 * wait[0]);
    CHECK(used[1] > used[0]);
    CHECK(used[2] > used[0]);
    // Who knows nothing of the future comes close to who does.
    CHECK(wait[3] < wait[1]);
    CHECK(wait[1] < 1.4 * wait[3]);
    CHECK(used[1] > 0.92 * bound);
  }
  CHECK(fuller >= 0.9 * cases);
}

}  // namespace

TEST_CASE("the worked example on a simulated slice: 280 against 370", "[plan][sim][sja]") {
  const sim::slice_cluster cluster{{10e9}, {{0, 100, 200}}};
  const std::vector<sim::cluster_job> jobs{{0, 160, 5e9}};
  const auto rigid = sim::simulate_cluster(cluster, jobs, sim::first_come{5, 5});
  CHECK(rigid.makespan == 370);
  CHECK(rigid.pieces == 1);
  CHECK(rigid.first_wait == 200);
  CHECK(rigid.wait == 210);
  sim::easy_backfilling backfilling;
  backfilling.set_up = backfilling.finish = 5;
  CHECK(sim::simulate_cluster(cluster, jobs, backfilling).makespan == 370);
  const auto cut = sim::simulate_cluster(cluster, jobs, sja::atomizing_dispatcher(sja::cut_terms{5, 5}));
  CHECK(cut.makespan == 280);
  CHECK(cut.pieces == 2);
  CHECK(cut.wait == 120);
  CHECK(cut.first_wait == 0);
  CHECK(cut.overhead == Approx(20.0 / 180));
}

TEST_CASE("backfilling starts later jobs only where they do not delay the first", "[sim][sja]") {
  // One slice; a reservation from 100 on. A runs first; B needs 90 and must wait for 150; C fits before 100, D does not.
  const sim::slice_cluster cluster{{10e9}, {{0, 100, 150}}};
  const std::vector<sim::cluster_job> jobs{{0, 40, 1e9}, {1, 90, 1e9}, {2, 50, 1e9}, {3, 70, 1e9}};
  const auto fcfs = sim::simulate_cluster(cluster, jobs, sim::first_come{});
  CHECK(fcfs.makespan == 150 + 90 + 50 + 70);
  CHECK(fcfs.first_wait == Approx((0 + 149 + 238 + 287) / 4.0));
  const auto backfilled = sim::simulate_cluster(cluster, jobs, sim::easy_backfilling{});
  CHECK(backfilled.makespan == 150 + 90 + 70);
  CHECK(backfilled.first_wait == Approx((0 + 149 + 38 + 237) / 4.0));
  // With a second slice the first job's slice is kept, not the other one.
  const sim::slice_cluster two{{20e9, 10e9}, {}};
  const std::vector<sim::cluster_job> mixed{{0, 100, 15e9}, {1, 100, 15e9}, {2, 500, 5e9}, {3, 500, 5e9}};
  const auto kept = sim::simulate_cluster(two, mixed, sim::easy_backfilling{});
  CHECK(kept.first_wait == Approx((0 + 99 + 0 + 197) / 4.0));
  CHECK_THROWS_WITH(sim::simulate_cluster(two, std::vector<sim::cluster_job>{{0, 1, 30e9}}, sim::first_come{}),
                    Catch::Matchers::Contains("has a slice the memory they need"));
}

TEST_CASE("a simulated cluster refuses what overlaps", "[sim][sja]") {
  struct reckless {
    void decide(sim::cluster_state& s) const { s.start({0, 0, s.now(), s.now() + 50, s.left(0)}); }
  };
  const sim::slice_cluster cluster{{10e9}, {{0, 20, 30}}};
  CHECK_THROWS_WITH(sim::simulate_cluster(cluster, std::vector<sim::cluster_job>{{0, 50, 1e9}}, reckless{}),
                    Catch::Matchers::Contains("job 0 cannot have slice 0"));
}

TEST_CASE("jobs and reservations of a simulated cluster are numbers that can be, and in order", "[sim][sja]") {
  const double none = std::nan(""), never = std::numeric_limits<double>::infinity();
  const auto run = [](const sim::slice_cluster& cluster, const std::vector<sim::cluster_job>& jobs) {
    return sim::simulate_cluster(cluster, jobs, sim::first_come{});
  };
  using Catch::Matchers::Contains;
  const sim::slice_cluster one{{10e9}, {}};
  CHECK_THROWS_WITH(run(one, {{10, 1, 1}, {0, 1, 1}}), Contains("job 1 of a simulated cluster comes at 0.0"));
  for (const double wrong : {none, -3.0, never}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(run(one, {{wrong, 1, 1}}), heddle::schedule_error);
    CHECK_THROWS_AS(run(one, {{0, wrong, 1}}), heddle::schedule_error);
    CHECK_THROWS_AS(run(one, {{0, 1, wrong}}), heddle::schedule_error);
  }
  CHECK_THROWS_WITH(run({{10e9}, {{3, 0, 1}}}, {{0, 1, 1}}), Contains("slice 3 of 1"));
  CHECK_THROWS_AS(run({{10e9}, {{-1, 0, 1}}}, {{0, 1, 1}}), heddle::schedule_error);
  CHECK_THROWS_AS(run({{10e9}, {{0, none, 1}}}, {{0, 1, 1}}), heddle::schedule_error);
  CHECK_THROWS_AS(run({{10e9}, {{0, 5, 1}}}, {{0, 1, 1}}), heddle::schedule_error);
  CHECK_THROWS_WITH(run({{10e9}, {{0, 4, 9}, {0, 0, 5}}}, {{0, 1, 1}}), Contains("reserved twice at 4.0"));
  CHECK_NOTHROW(run({{10e9}, {{0, 4, 9}, {0, 0, 4}}}, {{0, 1, 1}}));
  // Jobs without work take no time, and the rest of the numbers stay numbers.
  const sim::cluster_outcome o = run(one, {{0, 0, 1}, {5, 3, 1}, {10, 0, 1}});
  CHECK(o.utilisation == 0.3);
  CHECK(o.makespan == 10);
  CHECK(o.wait == 0);
}

TEST_CASE("jobs that are no whole number of units end with a shorter one", "[plan][sim][sja]") {
  const sim::slice_cluster one{{10e9}, {{0, 20, 30}}};
  const double overhead = 2;
  for (const double work : {0.0, 0.4, 1.0, 1.4, 1.6, 15.5, 20.2, 33.3}) {
    CAPTURE(work);
    sja::atomizing_dispatcher<> dispatcher({.set_up = 1, .finish = 1});
    const auto o = sim::simulate_cluster(one, std::vector<sim::cluster_job>{{0, work, 1}}, dispatcher);
    // 18 units fit in front of the reservation; a job without work only saves.
    CHECK(o.makespan == Approx(work <= 18 ? work + overhead : 30 + work - 18 + overhead));
    double done = 0;
    for (const sim::cluster_piece& p : o.ran) done += p.work;
    CHECK(done == Approx(work).margin(1e-12));
    CHECK(sja::broken_rule(dispatcher.announcer().log()) == "");
  }
}

TEST_CASE("cutting jobs beats backfilling rigid ones while cuts are cheap", "[plan][sim][sja]") {
  compare_at_loads(5);
}
TEST_CASE("cutting jobs beats backfilling rigid ones, with many seeds", "[plan][sim][sja][slow]") {
  compare_at_loads(60);
}

TEST_CASE("where cuts are dear, rigid jobs use a cluster better", "[plan][sim][sja]") {
  // At a load of 0.95 the crossover lies near 5 % of the mean gap of 1900 s; waits stay shorter at 20 %, too.
  std::array<double, 2> gain{};
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const study s = make_study(seed, 0.95, 300);
    gain[0] += atomized(s, 60, sja::response_ratio{}).utilisation - easy(s, 60).utilisation;
    gain[1] += atomized(s, 380, sja::response_ratio{}).utilisation - easy(s, 380).utilisation;
  }
  CHECK(gain[0] > 0);
  CHECK(gain[1] < 0);
}

TEST_CASE("a cluster's messages keep the protocol's rules", "[plan][sim][sja]") {
  const study s = make_study(3, 0.9, 60);
  for (const bool first_only : {false, true}) {
    using broker_type = sja::broker<sja::weighted, sja::interval_clearing>;
    sja::atomizing_dispatcher<broker_type> dispatcher({.set_up = 20, .finish = 20},
                                                      broker_type{sja::weighted{}, sja::interval_clearing{first_only}});
    const auto out = sim::simulate_cluster(s.cluster, s.jobs, dispatcher);
    const broker_type& broker = dispatcher.announcer();
    CHECK(sja::broken_rule(broker.log()) == "");
    int grants = 0;
    for (const sja::message& m : broker.log()) grants += m.is<sja::grant>() - m.is<sja::decline>();
    CHECK(grants == out.pieces);
    CHECK(out.pieces >= 60);
    CHECK(broker.running().empty());
  }
}

// tests/sim/clairvoyant_test.cpp: plans by one who knows the future, against trying everything, and the bound on work.
#include <heddle/core/random.hpp>
#include <heddle/sim/clairvoyant.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace sim = heddle::sim;

namespace {

sim::cluster_outcome foreseen(const sim::slice_cluster& cluster, const std::vector<sim::cluster_job>& jobs,
                              const sim::clairvoyant_terms& terms = {}) {
  return sim::simulate_cluster(cluster, jobs, sim::planned_dispatcher(sim::plan_clairvoyantly(cluster, jobs, terms)));
}

}  // namespace

TEST_CASE("one who knows the future waits for a short job before a long one", "[sim][sja]") {
  const sim::slice_cluster cluster{{1e9}, {}};
  const std::vector<sim::cluster_job> jobs{{0, 100, 1e9}, {1, 1, 1e9}};
  CHECK(sim::simulate_cluster(cluster, jobs, sim::easy_backfilling{}).wait == (0 + 99) / 2.0);
  CHECK(foreseen(cluster, jobs, {.cuts = false}).wait == (2 + 0) / 2.0);
  // Cuts that cost nothing: the long job runs for a second first.
  CHECK(foreseen(cluster, jobs, {.least_efficiency = 0}).wait <= (2 + 0) / 2.0);
}

TEST_CASE("the plan of the worked example ends at 280 with cuts and at 370 without", "[sim][sja]") {
  const sim::slice_cluster cluster{{10e9}, {{0, 100, 200}}};
  const std::vector<sim::cluster_job> jobs{{0, 160, 5e9}};
  const auto cut = foreseen(cluster, jobs, {.set_up = 5, .finish = 5});
  CHECK(cut.makespan == 280);
  CHECK(cut.pieces == 2);
  CHECK(foreseen(cluster, jobs, {.set_up = 5, .finish = 5, .cuts = false}).makespan == 370);
  CHECK_THROWS_WITH(sim::plan_clairvoyantly(cluster, std::vector<sim::cluster_job>{{0, 1, 11e9}}),
                    Catch::Matchers::Contains("more memory than any slice has"));
  CHECK(sim::plan_clairvoyantly(cluster, {}).empty());
}

TEST_CASE("a plan is refused jobs, slices and times that there are not", "[sim][sja]") {
  using Catch::Matchers::Contains;
  const sim::slice_cluster cluster{{1e9}, {}};
  const std::vector<sim::cluster_job> jobs{{0, 100, 1e9}};
  const std::vector<sim::cluster_piece> other_job{{5, 0, 0, 10, 10}}, other_slice{{0, 1, 0, 10, 10}};
  CHECK_THROWS_WITH(sim::plan_clairvoyantly(cluster, jobs, {}, other_job), Contains("job 5 on slice 0"));
  CHECK_THROWS_WITH(sim::plan_clairvoyantly(cluster, jobs, {}, other_slice), Contains("job 0 on slice 1"));
  CHECK_THROWS_WITH(sim::plan_clairvoyantly({{1e9}, {{3, 0, 1}}}, jobs), Contains("slice 3 is reserved, there are 1"));
  CHECK_THROWS_AS(sim::plan_clairvoyantly(cluster, jobs, {.unit = 0}), heddle::schedule_error);
  CHECK_THROWS_AS(sim::plan_clairvoyantly(cluster, jobs, {.set_up = -1}), heddle::schedule_error);
}

TEST_CASE("plans of few rigid jobs are as good as trying everything", "[sim][sja]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    const heddle::counter_random random(seed, 3);
    std::uint64_t next = 0;
    const auto below = [&](int n) {
      return static_cast<double>(random.integer(next++) % static_cast<std::uint64_t>(n));
    };
    const sim::slice_cluster cluster{{2, 1}, {{0, 10 + below(5), 20}, {1, 5 + below(10), 20 + below(4)}}};
    std::vector<sim::cluster_job> jobs;
    double arrival = 0;
    for (int j = 0; j < 4; ++j) {
      jobs.push_back({arrival, 1 + below(9), 1 + below(2)});
      arrival += below(4);
    }
    // All starts on whole seconds of all jobs: integer data need no others.
    double least = std::numeric_limits<double>::infinity();
    struct taken {
      int slice;
      double start, end;
    };
    std::vector<taken> busy;
    for (const auto& r : cluster.reservations) busy.push_back({r.slice, r.start, r.end});
    const auto search = [&](auto&& self, std::size_t j, double ends) -> void {
      if (j == jobs.size()) {
        least = std::min(least, ends);
        return;
      }
      for (int k = 0; k < 2; ++k) {
        if (jobs[j].bytes > cluster.bytes[static_cast<std::size_t>(k)]) continue;
        for (double at = jobs[j].arrival; at < 60; ++at) {
          const double end = at + jobs[j].work;
          if (ends + end >= least) break;
          if (std::any_of(busy.begin(), busy.end(),
                          [&](const taken& b) { return b.slice == k && at < b.end && b.start < end; }))
            continue;
          busy.push_back({k, at, end});
          self(self, j + 1, ends + end);
          busy.pop_back();
        }
      }
    };
    search(search, 0, 0);
    double lengths = 0;
    for (const auto& j : jobs) lengths += j.arrival + j.work;
    const auto out = foreseen(cluster, jobs, {.cuts = false});
    CHECK(out.wait == Approx((least - lengths) / 4).margin(1e-9));
  }
}

TEST_CASE("no dispatcher does more work than the bound", "[sim][sja]") {
  // A large slice for 10 s, a small one for 6 s and again from 8 s on.
  const sim::slice_cluster cluster{{2, 1}, {{1, 6, 8}}};
  CHECK(sim::most_work(cluster, std::vector<sim::cluster_job>{{0, 100, 2}}, 10) == 10);
  CHECK(sim::most_work(cluster, std::vector<sim::cluster_job>{{0, 7, 2}, {0, 9, 1}}, 10) == 7 + 9);
  CHECK(sim::most_work(cluster, std::vector<sim::cluster_job>{{0, 50, 2}, {0, 50, 1}}, 10) == 10 + 8);
  CHECK(sim::most_work(cluster, std::vector<sim::cluster_job>{{0, 50, 1}, {0, 50, 1}}, 10) == 18);
  CHECK(sim::most_work(cluster, std::vector<sim::cluster_job>{{9, 50, 1}}, 10) == 1);
  CHECK(sim::most_work(cluster, std::vector<sim::cluster_job>{{0, 50, 3}}, 10) == 0);
  CHECK(sim::most_utilisation(cluster, std::vector<sim::cluster_job>{{0, 9, 2}, {10, 1, 1}}) == 9.0 / 18);
}

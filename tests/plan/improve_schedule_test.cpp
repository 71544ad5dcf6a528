// tests/plan/improve_schedule_test.cpp: schedules that a search shortens: ZB-V's length, never longer, valid, the same results.
#include "catch.hpp"

#include "../schedule/emulator.hpp"

#include <heddle/core/error.hpp>
#include <heddle/plan/improve_schedule.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/derive.hpp>
#include <heddle/sim/action_table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace improve_schedule_tests {

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace plan = heddle::plan;
using Catch::Matchers::Contains;

// One microbatch after the other on the V map, F, I and W apart: nothing of the next begins on a rank before the last ends there.
sc::action_table one_by_one(int p, int m) {
  sc::action_table t;
  t.microbatches = m;
  for (int s = 0; s < 2 * p; ++s) t.rank_of_stage.push_back(s < p ? s : 2 * p - 1 - s);
  t.offsets = {0};
  for (int r = 0; r < p; ++r) {
    for (int i = 0; i < m; ++i) {
      for (const int s : {r, 2 * p - 1 - r}) t.actions.push_back({sc::action_kind::forward, s, i});
      for (const int s : {2 * p - 1 - r, r}) {
        t.actions.push_back({sc::action_kind::backward_input, s, i});
        t.actions.push_back({sc::action_kind::backward_weight, s, i});
      }
    }
    t.offsets.push_back(static_cast<int>(t.actions.size()));
  }
  return t;
}
std::vector<sc::stage_cost> equal_costs(int stages, double each) {
  return std::vector<sc::stage_cost>(static_cast<std::size_t>(stages), {each, each, each});
}
plan::improve_options tries(std::int64_t trials, std::uint64_t seed) {
  return {.seconds = 1e9, .trials = trials, .seed = seed};
}

TEST_CASE("a search shortens any schedule, which stays one of the same computations", "[plan][property]") {
  const auto seed = GENERATE(6u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  int shorter = 0;
  for (const char* text : {"gpipe", "1f1b", "interleaved", "zb-h1", "breadth-first | on_map v | in_rounds 1", "chimera",
                           "gpipe | split_backward | delay_weights 2"}) {
    const int p = 2 + 2 * static_cast<int>(random() % 2);
    const auto t = sc::derive(text, p, 4);
    std::vector<sc::stage_cost> costs;
    for (int s = 0; s < t.view().stages(); ++s) {
      const auto time = [&] { return static_cast<double>(1 + random() % 4); };
      const double f = time(), i = time(), w = time();
      costs.push_back({f, i, w});
    }
    const double link = static_cast<double>(random() % 3) / 2;
    int limit = 0;
    for (int r = 0; r < p; ++r) limit = std::max(limit, sc::peak_live(t, r));
    const auto made = plan::improve_schedule(t, costs, link, limit, tries(20000, seed));
    CAPTURE(text, p, link, limit, sc::to_text(made.table));
    CHECK(made.makespan <= made.makespan_before);
    CHECK(made.trials > 0);
    shorter += made.makespan < made.makespan_before ? 1 : 0;
    REQUIRE(sc::check_table(made.table).ok());
    for (int r = 0; r < p; ++r) CHECK(sc::peak_live(made.table, r) <= limit);
    const auto of = [&](const sc::action& a) {
      const auto& c = costs[static_cast<std::size_t>(a.stage)];
      return hd::sim::stage_times{c.forward, c.backward_input, c.backward_weight}(a);
    };
    CHECK(hd::sim::simulate(made.table, of, hd::sim::link_time{link}).makespan == made.makespan);
    REQUIRE(emulator::run(sc::lower(made.table), sc::transfers::rendezvous) == emulator::serial(sc::lower(t)));
    // The same seed and number of trials give the same schedule.
    CHECK(plan::improve_schedule(t, costs, link, limit, tries(20000, seed)).table.view() == made.table.view());
  }
  CHECK(shorter > 1);
}

TEST_CASE("a search finds ZB-V's length on two ranks", "[plan]") {
  const auto start = one_by_one(2, 4);
  const auto zb_v = sc::make_table(sc::zb_v<>{4}, 2);
  const hd::sim::stage_times times{0.5, 0.5, 0.5};
  const auto made = plan::improve_schedule(start, equal_costs(4, 0.5), 0, 4, tries(300000, 1));
  CHECK(made.makespan_before == hd::sim::simulate(start, times).makespan);
  CHECK(made.makespan == hd::sim::simulate(zb_v, times).makespan);
  CHECK(made.makespan == 12.5);
}

TEST_CASE("a search finds ZB-V's length on four ranks, from one microbatch after the other", "[plan][slow]") {
  const auto start = one_by_one(4, 8);
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const auto made = plan::improve_schedule(start, equal_costs(8, 0.5), 0, 8, {.seconds = 30, .seed = seed});
    CAPTURE(seed, made.trials);
    CHECK(made.makespan_before == 72);
    CHECK(made.makespan == 25.5);
  }
}

TEST_CASE("a search refuses what it cannot begin with", "[plan]") {
  const auto t = sc::make_table(sc::gpipe<>{4}, 2);
  const auto costs = equal_costs(2, 1);
  CHECK_THROWS_WITH(plan::improve_schedule(t, costs, 0, 3),
                    Contains("keeps 4 activations on rank 0, more than the limit of 3"));
  CHECK_THROWS_WITH(plan::improve_schedule(t, equal_costs(3, 1), 0, 4), Contains("2 stages have as many costs, not 3"));
  CHECK_THROWS_AS(plan::improve_schedule(t, equal_costs(2, -1), 0, 4), hd::config_error);
  CHECK_THROWS_AS(plan::improve_schedule(t, equal_costs(2, NAN), 0, 4), hd::config_error);
  CHECK_THROWS_AS(plan::improve_schedule(t, costs, -1, 4), hd::config_error);
  CHECK_THROWS_AS(plan::improve_schedule(t, costs, 0, 4, {.seconds = 0}), hd::config_error);
  CHECK_THROWS_AS(plan::improve_schedule(t, costs, 0, 4, {.trials = 0}), hd::config_error);
  CHECK_THROWS_WITH(plan::improve_schedule(sc::lower(t), costs, 0, 4), Contains("SEND_F already"));
  auto broken = sc::make_table(sc::gpipe<>{4}, 2);
  std::swap(broken.actions.front(), broken.actions[7]);
  CHECK_THROWS_AS(plan::improve_schedule(broken, costs, 0, 4), hd::schedule_error);
}

}  // namespace improve_schedule_tests

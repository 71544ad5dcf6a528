// tests/schedule/routed_test.cpp: ways of microbatches become action tables that are valid, lowered and simulated.
#include "catch.hpp"
#include "skippipe_cities/published.hpp"

#include <heddle/plan/skippipe.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/sim/serial_nodes.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;

namespace {

static_assert(sc::schedule_policy<sc::routed>);

// The table against what the ways say, without a look at how it was made.
void check_table(const sc::path_table& paths, const sc::routed& when) {
  const sc::action_table table = sc::make_table(when, paths.nodes());
  const sc::table_view t = table;
  REQUIRE(t.has_paths());
  CHECK(t.stages() == paths.nodes() + std::count(paths.stage_of_node.begin(), paths.stage_of_node.end(), 0));
  CHECK(sc::check_table(t, sc::transfers::buffered).ok());
  for (int i = 0; i < paths.microbatches(); ++i) {
    std::vector<int> ranks;
    int stage = paths.origin(i);
    CHECK(t.previous(stage, i) == -1);
    for (; stage >= 0; stage = t.next(stage, i)) {
      ranks.push_back(t.rank_of(stage));
      if (t.next(stage, i) >= 0 && t.previous(t.next(stage, i), i) != stage) FAIL("next and previous differ");
      if (t.next(stage, i) == -1) CHECK(when.part_of(stage) == paths.stages);
    }
    std::vector<int> expected(paths.path(i).begin(), paths.path(i).end());
    expected.push_back(paths.origin(i));
    CHECK(ranks == expected);
  }
  // Visits and loss, forward and backward; 2 L messages each.
  CHECK(t.actions().size() == static_cast<std::size_t>(2 * (paths.length + 1) * paths.microbatches()));
  CHECK(sc::sends(t) == std::int64_t{2} * paths.length * paths.microbatches());
  const sc::plan made = sc::make_plan(t);  // lowers, and checks where sends and receives block
  CHECK(sc::sends(made.table) == sc::sends(t));
}

}  // namespace

TEST_CASE("the published plans are valid schedules in the order of their simulation", "[schedule][skippipe]") {
  const sc::visit_costs costs = published::costs();
  const hd::sim::serial_nodes nodes;
  for (const sc::path_table& paths :
       {published::full_pipeline(), published::cost_blind(), published::balanced(), published::collision_aware()}) {
    const sc::routed when(paths, nodes(paths, costs));
    check_table(paths, when);
    const sc::action_table table = sc::make_table(when, 20);
    for (int n = 0; n < 20; ++n) CHECK(sc::peak_live(table, n, n) <= nodes.slots);
    // Without a timetable: all first visits, all second ones, ...
    check_table(paths, sc::routed(paths));
  }
}

TEST_CASE("the simulator of action tables agrees with that of serial nodes", "[schedule][skippipe]") {
  const sc::visit_costs costs = published::costs();
  const hd::sim::serial_nodes nodes{.slots = 3, .gap = 0, .injected_gap = 0};
  sc::path_table paths = published::collision_aware();
  // Waves and starting times are not in an action table.
  paths.way.resize(paths.way.size() / 2);
  paths.after.clear();
  paths.ready.clear();
  const sc::timetable times = nodes(paths, costs);
  const sc::routed when(paths, times);
  const sc::action_table table = sc::make_table(when, 20);
  const auto duration = [&](const sc::action& a) {
    const double w = costs.forward[static_cast<std::size_t>(table.view().rank_of(a.stage))];
    if (when.part_of(a.stage) == paths.stages) return a.kind == sc::action_kind::forward ? costs.loss_factor * w : 0.0;
    return a.kind == sc::action_kind::forward ? w : costs.backward_factor * w;
  };
  const auto link = [&](const sc::action& send) { return costs.send(table.view().rank_of(send.stage), send.peer); };
  CHECK(hd::sim::simulate(table, duration, link).makespan == Approx(times.makespan));
}

TEST_CASE("gradients of stages that not all microbatches visit are scaled", "[schedule][skippipe]") {
  const sc::path_table paths = published::balanced();
  const sc::routed when(paths);
  CHECK(when.parts() == 7);
  for (int part = 0; part < 7; ++part) {
    CHECK(sc::gradient_factor(paths, part) == 1.0 / 30);
    CHECK(sc::gradient_factor<sc::by_visits>(paths, part) == 1.0 / (part == 0 || part == 6 ? 30 : 18));
  }
  sc::path_table nobody;
  nobody.stages = 3;
  nobody.length = 2;
  nobody.stage_of_node = {0, 1, 2};
  nobody.way = {0, 1};
  CHECK(sc::gradient_factor<sc::by_visits>(nobody, 2) == 1);
}

TEST_CASE("a schedule of ways refuses other people's timetables", "[schedule][skippipe]") {
  const sc::visit_costs costs = published::costs();
  const sc::path_table paths = published::collision_aware(), other = published::balanced();
  const hd::sim::serial_nodes nodes;
  CHECK_THROWS_WITH(sc::routed(paths, nodes(other, costs)), Catch::Matchers::Contains("another one in the timetable"));
  sc::timetable cut = nodes(paths, costs);
  cut.visits.pop_back();
  CHECK_THROWS_WITH(sc::routed(paths, cut), Catch::Matchers::Contains("does not end in the timetable"));
  for (const double no_time : {std::nan(""), 1e9}) {
    sc::timetable odd = nodes(paths, costs);
    odd.visits.back().start = no_time;
    CHECK_THROWS_WITH(sc::routed(paths, odd), Catch::Matchers::Contains("ends before it begins, or at no time"));
  }
  CHECK_THROWS_AS(sc::make_table(sc::routed(paths), 19), hd::schedule_error);
  CHECK_THROWS_AS(sc::routed(sc::path_table{1, 2147483647, {0}, {}, {}, {}}), hd::schedule_error);
  CHECK_THROWS_AS(sc::routed(sc::path_table{1, 1, {0}, {}, {}, {}}), hd::schedule_error);
}

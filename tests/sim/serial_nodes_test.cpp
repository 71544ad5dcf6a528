// tests/sim/serial_nodes_test.cpp: the published SkipPipe plans take the published times; slots, gaps and waves hold.
#include "catch.hpp"
#include "skippipe_cities/published.hpp"

#include <heddle/sim/serial_nodes.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;

namespace {

// Two nodes, one second each way; stage 0 on node 0, stage 1 on node 1.
sc::visit_costs two_nodes() {
  sc::visit_costs c;
  c.forward = {1, 2};
  c.message = {0, 1, 1, 0};
  return c;
}
sc::path_table to_and_fro(int microbatches) {
  sc::path_table t;
  t.stages = t.length = 2;
  t.stage_of_node = {0, 1};
  for (int i = 0; i < microbatches; ++i) t.way.insert(t.way.end(), {0, 1});
  return t;
}

// What every timetable of a table of ways must obey; the obvious formulas.
void check_times(const sc::path_table& paths, const sc::visit_costs& costs, const hd::sim::serial_nodes& nodes,
                 const sc::timetable& times) {
  const int length = paths.length;
  REQUIRE(times.visits.size() == static_cast<std::size_t>(paths.microbatches() * paths.visits()));
  std::vector<std::vector<sc::visit>> on(static_cast<std::size_t>(paths.nodes())),
      of(static_cast<std::size_t>(paths.microbatches()));
  double last = 0;
  for (const sc::visit& v : times.visits) {
    on[static_cast<std::size_t>(v.node)].push_back(v);
    of[static_cast<std::size_t>(v.microbatch)].push_back(v);
    last = (std::max)(last, v.end);
  }
  CHECK(times.makespan == last);
  bool serial = true, fits = true, ordered = true;
  for (const auto& visits : on) {
    int held = 0;
    for (std::size_t k = 0; k < visits.size(); ++k) {
      const double gap = k == 0 ? 0 : visits[k - 1].position == 0 ? nodes.injected_gap : nodes.gap;
      if (k > 0) serial = serial && visits[k].start >= visits[k - 1].end + gap - 1e-9;
      held += sc::is_forward(visits[k], length) ? 1 : sc::is_loss(visits[k], length) ? 0 : -1;
      fits = fits && held >= 0 && held <= nodes.slots;
    }
  }
  for (int i = 0; i < paths.microbatches(); ++i) {
    const auto& visits = of[static_cast<std::size_t>(i)];
    REQUIRE(static_cast<int>(visits.size()) == paths.visits());
    for (int k = 0; k < paths.visits(); ++k) {
      const sc::visit& v = visits[static_cast<std::size_t>(k)];
      ordered = ordered && v.position == k && v.node == paths.node_at(i, k);
      ordered = ordered && v.end - v.start == Approx(costs.work(v.node, k, length));
      if (k > 0) {
        const sc::visit& before = visits[static_cast<std::size_t>(k - 1)];
        ordered =
            ordered && v.start >= before.end + (before.node == v.node ? 0 : costs.send(before.node, v.node)) - 1e-9;
      }
    }
    ordered = ordered && visits[0].start >= paths.ready_at(i) - 1e-9;
    if (paths.waits_for(i) >= 0)
      ordered = ordered && visits[0].start >= of[static_cast<std::size_t>(paths.waits_for(i))].back().end - 1e-9;
  }
  CHECK(serial);
  CHECK(fits);
  CHECK(ordered);
}

}  // namespace

TEST_CASE("the four published plans take the published times", "[sim][skippipe]") {
  struct row {
    double forward, tolerance;
    std::array<double, 4> seconds;
  };
  // The published simulator waits in steps of 0.1 s for slots, which tells where nodes are long busy.
  for (const row& r :
       {row{0.44, 0.02, {79.940, 48.916, 35.435, 33.314}}, row{1.76, 0.04, {154.20, 87.17, 75.81, 68.55}}}) {
    const sc::visit_costs costs = published::costs(r.forward);
    const std::array plans{published::full_pipeline(), published::cost_blind(r.forward), published::balanced(r.forward),
                           published::collision_aware()};
    double before = 1e9;
    for (std::size_t k = 0; k < plans.size(); ++k) {
      CAPTURE(k, r.forward);
      const hd::sim::serial_nodes nodes;
      const sc::timetable times = nodes(plans[k], costs);
      check_times(plans[k], costs, nodes, times);
      CHECK(times.makespan == Approx(r.seconds[k]).epsilon(r.tolerance));
      CHECK(times.makespan < before);
      CHECK(nodes.seconds(plans[k], costs) == times.makespan);
      before = times.makespan;
    }
    CHECK(plans[0].microbatches() == 27);
    CHECK(plans[3].microbatches() == 30);
  }
}

TEST_CASE("what an independent simulator of the same rules finds, to the hundredth", "[sim][skippipe]") {
  const hd::sim::serial_nodes nodes;
  const sc::visit_costs fast = published::costs(0.44), slow = published::costs(1.76);
  CHECK(nodes.seconds(published::full_pipeline(), fast) == Approx(79.68).margin(0.006));
  CHECK(nodes.seconds(published::cost_blind(0.44), fast) == Approx(48.92).margin(0.006));
  CHECK(nodes.seconds(published::balanced(0.44), fast) == Approx(35.57).margin(0.006));
  CHECK(nodes.seconds(published::collision_aware(), fast) == Approx(33.05).margin(0.006));
  CHECK(nodes.seconds(published::full_pipeline(), slow) == Approx(153.85).margin(0.006));
  CHECK(nodes.seconds(published::cost_blind(1.76), slow) == Approx(84.30).margin(0.006));
  CHECK(nodes.seconds(published::balanced(1.76), slow) == Approx(76.21).margin(0.006));
  CHECK(nodes.seconds(published::collision_aware(), slow) == Approx(69.02).margin(0.006));
}

TEST_CASE("a way costs forwards, the loss, backwards and its messages", "[sim][skippipe]") {
  const hd::sim::serial_nodes nodes{.slots = 1, .gap = 0, .injected_gap = 0};
  // F 1, message 1, F 2, message 1, loss 0.25, message 1, B 3, message 1, B 1.5
  CHECK(nodes.seconds(to_and_fro(1), two_nodes()) == Approx(1 + 1 + 2 + 1 + 0.25 + 1 + 3 + 1 + 1.5));
  // One slot: the second waits for the first.
  CHECK(nodes.seconds(to_and_fro(2), two_nodes()) == Approx(2 * 11.75));
  // Two: its forward runs under the first one's messages.
  const hd::sim::serial_nodes two{.slots = 2, .gap = 0, .injected_gap = 0};
  CHECK(two.seconds(to_and_fro(2), two_nodes()) < 2 * 11.75 - 5);
  sc::path_table waves = to_and_fro(2);
  waves.after = {-1, 0};
  waves.ready = {0.5, 0};
  CHECK(two.seconds(waves, two_nodes()) == Approx(0.5 + 2 * 11.75));
  const hd::sim::serial_nodes rests{.slots = 1, .gap = 0.5, .injected_gap = 3.5};
  // The origin is still resting when the loss comes back after 5 s? No: 1 + 3.5 < 5; only a second one would notice.
  CHECK(rests.seconds(to_and_fro(1), two_nodes()) == Approx(11.75));
  CHECK(rests.seconds(to_and_fro(2), two_nodes()) == Approx(2 * 11.75 + 0.5));
}

TEST_CASE("nodes that wait for each other's slots are found", "[sim][skippipe]") {
  sc::path_table crossed;  // microbatch 0 goes to stage 1 and then 2, microbatch 1 the other way round
  crossed.stages = crossed.length = 3;
  crossed.stage_of_node = {0, 1, 2};
  crossed.way = {0, 1, 2, 0, 2, 1};
  sc::visit_costs costs;
  costs.forward = {1, 5, 5};
  costs.message.assign(9, 1.0);
  CHECK_NOTHROW(hd::sim::serial_nodes{.slots = 2}(crossed, costs));
  crossed.stage_of_node = {0, 1, 2, 0};
  crossed.way = {0, 1, 2, 3, 2, 1};
  costs.forward = {1, 5, 5, 1};
  costs.message.assign(16, 1.0);
  CHECK_THROWS_WITH(hd::sim::serial_nodes{.slots = 1}(crossed, costs),
                    Catch::Matchers::Contains("waits for ever for a slot of node"));
  CHECK(hd::sim::serial_nodes{.slots = 1}.seconds(crossed, costs) > 1e300);
  CHECK_THROWS_WITH(hd::sim::serial_nodes{}(crossed, two_nodes()), Catch::Matchers::Contains("are those of 2 nodes"));
}

TEST_CASE("slots and gaps of nodes are numbers that can be", "[sim][skippipe]") {
  for (const double wrong : {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(hd::sim::serial_nodes{.gap = wrong}(to_and_fro(1), two_nodes()), hd::schedule_error);
    CHECK_THROWS_AS(hd::sim::serial_nodes{.injected_gap = wrong}(to_and_fro(1), two_nodes()), hd::schedule_error);
  }
  CHECK_THROWS_WITH(hd::sim::serial_nodes{.slots = -1}(to_and_fro(1), two_nodes()),
                    Catch::Matchers::Contains("not -1 slots"));
}

TEST_CASE("a table of ways that is none is refused", "[schedule][skippipe]") {
  const auto refuse = [](auto change, const char* text) {
    sc::path_table t;
    t.stages = 3;
    t.length = 2;
    t.stage_of_node = {0, 1, 2};
    t.way = {0, 1, 0, 2};
    CHECK_NOTHROW(sc::require_paths(t));
    change(t);
    CHECK_THROWS_WITH(sc::require_paths(t), Catch::Matchers::Contains(text));
  };
  refuse([](auto& t) { t.way = {0, 1, 0}; }, "do not fit");
  refuse([](auto& t) { t.way = {0, 1, 2, 1}; }, "microbatch 1 does not begin on stage 0");
  refuse([](auto& t) { t.way = {0, 0, 0, 1}; }, "comes there again");
  refuse([](auto& t) { t.way = {0, 3, 0, 1}; }, "does not exist");
  refuse([](auto& t) { t.stage_of_node = {0, 1, 3}; }, "holds stage 3");
  refuse([](auto& t) { t.ready = {0}; }, "another number");
  refuse([](auto& t) { t.after = {-1, 2}; }, "waits for a microbatch that does not exist");
  refuse([](auto& t) { t.after = {1, 0}; }, "waits for itself");
  refuse(
      [](auto& t) {
        t.length = 3;
        t.stage_of_node = {0, 1, 1};
        t.way = {0, 1, 2};
      },
      "comes to one stage twice");
}

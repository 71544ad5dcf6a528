#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/sim/world_step.hpp>

#include "catch.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace sim = heddle::sim;
using hd::dp, hd::pp, hd::tp;
using sc::action_kind;

namespace {

using world_step_mesh = hd::mesh<hd::axis<pp>, hd::axis<dp>, hd::axis<tp>>;

// Devices in nodes of 4, nodes in pods of 2.
const sim::levels world_step_levels({{1, 1e-6, 4e11}, {4, 5e-6, 5e10}, {8, 2e-5, 1e11}});

// Times of each stage, kind by kind.
struct unequal_times {
  std::vector<double> forward, backward, weight;
  double operator()(const sc::action& a) const {
    const auto s = static_cast<std::size_t>(a.stage);
    switch (a.kind) {
      case action_kind::forward:
        return forward[s];
      case action_kind::backward:
        return backward[s] + weight[s];
      case action_kind::backward_input:
        return backward[s];
      case action_kind::backward_weight:
        return weight[s];
      default:
        return 0;
    }
  }
};
unequal_times drawn_times(int stages, std::mt19937& draw) {
  std::uniform_real_distribution<double> around(0.7, 1.3);
  unequal_times t;
  for (int s = 0; s < stages; ++s) {
    t.forward.push_back(around(draw));
    t.backward.push_back(around(draw));
    t.weight.push_back(around(draw));
  }
  return t;
}

sc::action_table step_table(const std::string& name, int microbatches, int ranks) {
  return sc::lowered_to_run(sc::make_table(sc::named(name, microbatches), ranks));
}

// What the path says must add up to the step.
void path_adds_up(const sim::step& s) {
  double sum = s.computing;
  for (const double e : s.exposed) sum += e;
  CHECK(sum == Approx(s.seconds).epsilon(1e-9).margin(0));
  REQUIRE(!s.critical.empty());
  CHECK(s.critical.back().end == Approx(s.seconds).epsilon(1e-12).margin(0));
  bool rises = true;
  for (std::size_t i = 1; i < s.critical.size(); ++i)
    rises = rises && s.critical[i - 1].end <= s.critical[i].end * (1 + 1e-12);
  CHECK(rises);
}

void steps_equal(const sim::step& a, const sim::step& b) {
  CHECK(a.seconds == Approx(b.seconds).epsilon(1e-9).margin(0));
  CHECK(a.computing == Approx(b.computing).epsilon(1e-9).margin(1e-9));
  for (std::size_t i = 0; i < a.exposed.size(); ++i)
    CHECK(a.exposed[i] == Approx(b.exposed[i]).epsilon(1e-9).margin(1e-9));
}

}  // namespace

TEST_CASE("a step of one pipeline takes what sim::simulate says, for all named schedules", "[sim]") {
  std::mt19937 draw(11);
  for (const auto name : sc::named::names)
    for (const int p : {1, 2, 4, 8})
      for (const int m : {16, 24}) {
        CAPTURE(name, p, m);
        const sc::named when(name, m);
        if (!when.fits(p)) continue;
        const auto raw = sc::make_table(when, p);
        const auto table = sc::lowered_to_run(raw);
        const sim::step_times<unequal_times> times{drawn_times(table.view().stages(), draw), 1e9};
        const world_step_mesh mesh{p, 1, 1};
        // A message over one node, and from one node to the next.
        const auto link = [&](const sc::action& a) {
          const int from = table.view().rank_of(a.stage), to = a.peer;
          return from / 4 == to / 4 ? 1e-6 + 1e9 / 4e11 : 5e-6 + 1e9 / 5e10;
        };
        for (const auto mode : {sc::transfers::asynchronous, sc::transfers::buffered, sc::transfers::rendezvous,
                                sc::transfers::grouped}) {
          CAPTURE(static_cast<int>(mode));
          const double plain = sim::simulate(table, times.compute, link, mode).makespan;
          for (const bool skip : {false, true}) {
            const auto s =
                sim::simulate_step(table, mesh, times, world_step_levels, {.messages = mode, .skip_repeated = skip});
            CHECK(s.seconds == Approx(plain).epsilon(skip ? 1e-9 : 1e-12).margin(0));
            CHECK(s.pipelines == 1);
            CHECK(s.simulated + s.copied == static_cast<std::int64_t>(table.actions.size()));
            path_adds_up(s);
          }
        }
        // Where a sender waits, as if its computations took so much longer.
        const auto held = sim::simulate_step(table, mesh, times, world_step_levels, {.messages_beside = false});
        const auto and_send = [&](const sc::action& a) {
          const int other = a.kind == action_kind::forward           ? table.view().next(a.stage, a.microbatch)
                            : a.kind == action_kind::backward_weight ? -1
                            : sc::is_compute(a.kind)                 ? table.view().previous(a.stage, a.microbatch)
                                                                     : -1;
          if (other < 0 || table.view().rank_of(other) == table.view().rank_of(a.stage)) return times.compute(a);
          return times.compute(a) +
                 link({action_kind::send_forward, a.stage, a.microbatch, table.view().rank_of(other)});
        };
        CHECK(held.seconds == Approx(sim::simulate(table, and_send).makespan).epsilon(1e-9).margin(0));
        path_adds_up(held);
        // Where no transfers are placed, too.
        const auto s = sim::simulate_step(raw, mesh, times, world_step_levels);
        CHECK(s.seconds == Approx(sim::simulate(raw, times.compute, link).makespan).epsilon(1e-9).margin(0));
        path_adds_up(s);
      }
}

TEST_CASE("copied repetitions and equal pipelines give the time of the full simulation", "[sim]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 draw(seed);
  int copied = 0;
  for (const std::string name :
       {"1f1b", "interleaved:2", "interleaved:3", "zb-h1", "zb-v", "gpipe", "dual-pipe-v", "chimera"})
    for (const int p : {2, 4}) {
      CAPTURE(name, p);
      const auto table = step_table(name, 60 * p, p);
      const sim::step_times<unequal_times> times{drawn_times(table.view().stages(), draw), 2e9, {3e9}};
      const world_step_mesh mesh{p, 6, 2};
      const std::vector<std::pair<int, double>> slow{{mesh.rank_of({p - 1, 3, 1}), 1.25},
                                                     {mesh.rank_of({0, 4, 0}), 1.1}};
      for (const bool beside : {true, false}) {
        const auto run = [&](bool share, bool skip) {
          return sim::simulate_step(table, mesh, times, world_step_levels,
                                    {.slow = slow, .data_beside = beside, .share_equal = share, .skip_repeated = skip});
        };
        const auto full = run(false, false), shared = run(true, false), skipped = run(true, true);
        CHECK(full.pipelines == 6);
        CHECK(shared.pipelines == 3);
        CHECK(full.copied == 0);
        copied += skipped.copied > 0 ? 1 : 0;
        steps_equal(shared, full);
        steps_equal(skipped, full);
        for (const auto& s : {full, shared, skipped}) path_adds_up(s);
        CHECK(std::any_of(full.critical.begin(), full.critical.end(), [&](const sim::step_event& e) {
          return e.rank == slow[0].first || e.rank == slow[1].first;
        }));
      }
    }
  CHECK(copied >= 8);
}

TEST_CASE("data parallel calls show total/(2 v) of their time where computation covers the rest", "[sim]") {
  const int p = 4, d = 4;
  for (const int v : {1, 2, 3, 6}) {
    CAPTURE(v);
    const auto raw = sc::make_table(sc::named("interleaved:" + std::to_string(v), 8 * p), p);
    // Each chunk's weights before its first forward, all resident; its gradients behind its last backward; then the
    // step.
    const auto table = sc::lower(raw.view(), sc::passes::unshard{v}, sc::passes::place_transfers{},
                                 sc::passes::reduce_gradients{}, sc::passes::optimizer{});
    const world_step_mesh mesh{p, d, 1};
    const double bytes = 6e9 / v;
    sim::step_times<> times{{1.0 / v, 1.0 / v, 1.0 / v}, 0, {bytes}, {bytes}};
    const double each = sim::call_seconds<dp>(world_step_levels, mesh, hd::comm_operation::all_gather, bytes);
    REQUIRE(each > 0);
    REQUIRE(each < 1.0 / v);
    const double total = 2 * v * each;
    times.loading = each;  // the first gather goes on beside the loading of data
    const auto with = sim::simulate_step(table, mesh, times, world_step_levels);
    CHECK(with.exposed[1] == Approx(total / (2 * v)).epsilon(1e-9).margin(0));
    CHECK(with.exposed[0] == 0);
    path_adds_up(with);
    auto none = times;
    none.gradient_bytes = none.weight_bytes = {};
    const auto without = sim::simulate_step(table, mesh, none, world_step_levels);
    CHECK(with.seconds - without.seconds == Approx(total / (2 * v)).epsilon(1e-9).margin(0));
    // Without loading the first gather shows, too; without overlap nearly all do.
    times.loading = 0;
    none.loading = 0;
    CHECK(sim::simulate_step(table, mesh, times, world_step_levels).seconds -
              sim::simulate_step(table, mesh, none, world_step_levels).seconds ==
          Approx(2 * total / (2 * v)).epsilon(1e-9).margin(0));
    const auto blocking = sim::simulate_step(table, mesh, times, world_step_levels, {.data_beside = false});
    CHECK(blocking.exposed[1] >= with.exposed[1] + each);
    path_adds_up(blocking);
  }
}

TEST_CASE("12,288 ranks with a slow one take one step, and a long pipeline copies nearly all", "[sim]") {
  const hd::mesh<hd::axis<pp, 8>, hd::axis<dp, 192>, hd::axis<tp, 8>> mesh;
  const auto table = step_table("interleaved:6", 32, 8);
  const sim::levels cluster({{1, 1e-6, 4e11}, {8, 5e-6, 5e10, 8}, {512, 2e-5, 1e13}});
  const int slow = mesh.rank_of({3, 77, 5});
  const sim::step_times<> times{{0.01, 0.01, 0.01}, 6e6, {1e9}};
  const auto s = sim::simulate_step(table, mesh, times, cluster, {.slow = {{slow, 1.1}}});
  CHECK(s.pipelines == 2);
  CHECK(s.simulated == 2 * static_cast<std::int64_t>(table.actions.size()));
  CHECK(std::count_if(s.critical.begin(), s.critical.end(), [&](const sim::step_event& e) { return e.rank == slow; }) >
        100);
  path_adds_up(s);
  const auto even = sim::simulate_step(table, mesh, times, cluster);
  CHECK(even.pipelines == 1);
  CHECK(s.seconds > even.seconds * 1.05);

  const auto longer = step_table("1f1b", 2000, 4);
  const auto one = sim::simulate_step(longer, world_step_mesh{4, 1, 1}, sim::step_times<>{}, world_step_levels);
  CHECK(one.simulated < 500);
  CHECK(one.simulated + one.copied == static_cast<std::int64_t>(longer.actions.size()));
  CHECK(one.seconds == 3 * (2000 + 3));
}

TEST_CASE("a step refuses what does not fit", "[sim]") {
  const auto table = step_table("1f1b", 4, 2);
  const world_step_mesh mesh{2, 2, 2};
  const sim::step_times<> times;
  CHECK_THROWS_AS(sim::simulate_step(table, world_step_mesh{4, 2, 1}, times, world_step_levels), hd::config_error);
  CHECK_THROWS_AS(sim::simulate_step(table, mesh, times, world_step_levels, {.slow = {{8, 1.1}}}), hd::config_error);
  CHECK_THROWS_AS(sim::simulate_step(table, mesh, times, world_step_levels, {.slow = {{0, 0.0}}}), hd::config_error);
  CHECK_THROWS_AS(sim::simulate_step(table, mesh, sim::step_times<>{{}, 0, {1, 2, 3}}, world_step_levels),
                  hd::config_error);
  // Both ranks begin with what needs the other.
  auto stuck = sc::make_table(sc::named("1f1b", 1), 2);
  std::swap(stuck.actions[0], stuck.actions[1]);
  CHECK_THROWS_AS(sim::simulate_step(stuck, mesh, times, world_step_levels), hd::schedule_error);
}

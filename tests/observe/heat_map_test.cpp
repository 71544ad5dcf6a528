// Times of steps and the heat map: which rank, stage or node is slow, found soon and without false alarms.
#include <heddle/observe/heat_map.hpp>
#include <heddle/observe/step_times.hpp>

#include <heddle/comm/threads.hpp>
#include <heddle/core/observers.hpp>
#include <heddle/core/random.hpp>
#include <heddle/testing/faults.hpp>

#include "catch.hpp"
#include "svg.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace heat_map_test {
namespace {

namespace hd = heddle;
namespace observe = heddle::observe;
using hd::dp, hd::pp, hd::tp;

hd::event event_of(hd::activity kind, int rank, int step, std::int64_t begin, std::int64_t end,
                   std::int64_t bytes = -1) {
  hd::event e;
  e.kind = kind;
  e.rank = rank;
  e.step = step;
  e.begin_ns = begin;
  e.end_ns = end;
  e.bytes = bytes;
  return e;
}

// Times with 3 % noise, 2 % of them with a spike of 50 %. `slow` says by how much a rank takes longer from step `from` on.
class noisy_times {
 public:
  explicit noisy_times(std::uint64_t seed) : words_(seed) {}
  template <class Slow>
  std::vector<std::vector<double>> rows(int ranks, int steps, const Slow& slow) {
    std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r)
      for (int i = 0; i < steps; ++i) {
        const double spike = uniform() < 0.02 ? 1.5 : 1.0;
        const double noise = std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
        all[static_cast<std::size_t>(r)].push_back(0.1 * (1 + 0.03 * noise) * spike * (1 + slow(r, i)));
      }
    return all;
  }

 private:
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = words_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t words_;
};

// The map when `steps` steps are done: of the last 17 where so many are enough for the rule.
observe::heat_map map_of(const std::vector<std::vector<double>>& rows, int steps, std::vector<int> roles = {},
                         std::vector<double> expected = {}) {
  std::vector<std::vector<double>> some;
  const int first = roles.empty() && steps > 17 ? steps - 17 : 0;
  for (const auto& row : rows) some.emplace_back(row.begin() + first, row.begin() + steps);
  return observe::heat_map(some, first, std::move(roles), std::move(expected));
}

}  // namespace

TEST_CASE("what an event encloses is not its own time", "[observe][heat_map]") {
  observe::step_times times(2, 4);
  for (int step = 0; step < 6; ++step) {
    const std::int64_t t = 1000 * step;
    times.record(event_of(hd::activity::collective, 1, step, t + 10, t + 40, 64));  // in the forward below
    times.record(event_of(hd::activity::collective, 1, step, t + 50, t + 60, 8));
    times.record(event_of(hd::activity::forward, 1, step, t, t + 100));
    times.record(event_of(hd::activity::send, 1, step, t + 100, t + 130, 4));
    times.record(event_of(hd::activity::backward, 1, step, t + 130, t + 330));
    times.record(event_of(hd::activity::data, 1, step, t + 330, t + 340));
    times.record(event_of(hd::activity::optimizer, 1, step, t + 340, t + 350));
  }
  times.record(event_of(hd::activity::forward, 1, -1, 0, 1000));  // belongs to no step
  times.record(event_of(hd::activity::forward, 7, 0, 0, 1000));   // a rank that is not there
  CHECK(times.last(0).empty());
  const auto kept = times.last(1);
  REQUIRE(kept.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(kept[i].step == static_cast<std::int64_t>(i) + 2);
    CHECK(kept[i].compute_ns == 60 + 200 + 10);
    CHECK(kept[i].communication_ns == 40 + 30);
    CHECK(kept[i].bytes == 76);
    CHECK(kept[i].longest_ns == 200);
  }
}

TEST_CASE("more events than are kept apart are still taken off what encloses them", "[observe][heat_map]") {
  observe::step_times times(1);
  std::int64_t inside = 0;
  for (int i = 0; i < 1000; ++i) {
    times.record(event_of(hd::activity::collective, 0, 3, 10 * i + 1, 10 * i + 4));
    inside += 3;
  }
  times.record(event_of(hd::activity::forward, 0, 3, 0, 20'000));
  CHECK(times.last(0).at(0).compute_ns == 20'000 - inside);
  CHECK(times.last(0).at(0).communication_ns == inside);
}

namespace {
// Named by step `steps`, and by step 20 in all runs but this part of them.
void check_slow_and_clean_runs(std::uint64_t seeds, int steps, double late_part) {
  int missed = 0, late = 0, wrong = 0, alarms = 0;
  for (const int ranks : {4, 8, 16})
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      INFO(ranks << " ranks, seed " << seed);
      const int culprit = static_cast<int>(seed) % ranks;
      const auto slow =
          noisy_times(seed + 1'000'003u * static_cast<unsigned>(ranks)).rows(ranks, steps, [&](int r, int) {
            return r == culprit ? 0.1 : 0.0;
          });
      int found = 0;
      for (int n = 17; n <= steps; ++n)
        for (const auto& s : map_of(slow, n).slow()) {
          if (found == 0 && s.rank == culprit) found = n;
          wrong += s.rank != culprit ? 1 : 0;
        }
      missed += found == 0 ? 1 : 0;
      late += found == 0 || found > 20 ? 1 : 0;
      const auto even =
          noisy_times(seed + 7'000'001u * static_cast<unsigned>(ranks)).rows(ranks, 100, [](int, int) { return 0.0; });
      bool alarm = false;
      for (int n = 17; n <= 100; ++n) alarm = alarm || !map_of(even, n).slow().empty();
      alarms += alarm ? 1 : 0;
    }
  CHECK(missed == 0);
  CHECK(wrong == 0);
  CHECK(late <= late_part * 3 * static_cast<double>(seeds));
  CAPTURE(alarms);
  CHECK(static_cast<std::uint64_t>(alarms) <= 3 * seeds / 200);  // half a percent
}
}  // namespace

TEST_CASE("a rank that is 10 % slow is named soon, and nobody of clean runs", "[observe][heat_map]") {
  check_slow_and_clean_runs(40, 20, 0);
}
TEST_CASE("a rank that is 10 % slow is named by step 30: 120 seeds of 4, 8 and 16 ranks", "[observe][heat_map][slow]") {
  check_slow_and_clean_runs(120, 30, 0.005);
}

// The median of two ranks is half as far from the slow one, and its noise half that of both: it takes longer.
TEST_CASE("of two ranks one that is 10 % slow is named by step 80, and nobody of clean runs", "[observe][heat_map]") {
  int found = 0, wrong = 0, alarms = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    INFO("seed " << seed);
    const int culprit = static_cast<int>(seed % 2);
    const auto rows = noisy_times(seed + 2'000'003u).rows(2, 80, [&](int r, int) { return r == culprit ? 0.1 : 0.0; });
    const auto even = noisy_times(seed + 7'000'003u).rows(2, 100, [](int, int) { return 0.0; });
    bool named = false, alarm = false;
    for (int n = 17; n <= 80; ++n)
      for (const auto& s : map_of(rows, n).slow()) {
        named = named || s.rank == culprit;
        wrong += s.rank != culprit ? 1 : 0;
      }
    for (int n = 17; n <= 100; ++n) alarm = alarm || !map_of(even, n).slow().empty();
    found += named ? 1 : 0;
    alarms += alarm ? 1 : 0;
  }
  CHECK(found == 120);
  CHECK(wrong == 0);
  CHECK(alarms == 0);
}

TEST_CASE("of two ranks one that is 20 % slow is named within 30 steps", "[observe][heat_map]") {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto rows = noisy_times(seed).rows(2, 30, [](int r, int) { return r == 1 ? 0.2 : 0.0; });
    bool named = false;
    for (int n = 17; n <= 30; ++n)
      for (const auto& s : map_of(rows, n).slow()) {
        CHECK(s.rank == 1);
        named = true;
      }
    found += named ? 1 : 0;
  }
  CHECK(found == 40);
}

TEST_CASE("a slow node, replica or stage is named in place of its ranks", "[observe][heat_map]") {
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 4>, hd::axis<tp, 2>>;
  const auto roles = observe::roles_along<pp>(mesh{});
  const auto name = [&](const auto& slow, std::vector<double> expected = {}) {
    const auto rows = noisy_times(11).rows(16, 40, slow);
    std::string all;
    for (const auto& s : map_of(rows, 40, roles, std::move(expected)).slow(mesh{})) all += s.name + ";";
    return all;
  };
  CHECK(name([](int, int) { return 0.0; }) == "");
  CHECK(name([](int r, int) { return r == 5 ? 0.15 : 0.0; }) == "rank 5 (dp=0, pp=2, tp=1);");
  CHECK(name([](int r, int) { return r >= 8 ? 0.15 : 0.0; }) == "dp=1;");
  CHECK(name([](int r, int) { return r >= 8 ? 0.15 : r == 3 ? 0.5 : 0.0; }).find("dp=1;") != std::string::npos);
  // Stages that take what they should, 1 : 2 : 1 : 1, and one that does not.
  const auto stage = [](int r, double of_stage_2) {
    const int s = r / 2 % 4;
    return s == 1 ? 1.0 : s == 2 ? of_stage_2 : 0.0;
  };
  CHECK(name([&](int r, int) { return stage(r, 0.0); }) == "");
  CHECK(name([&](int r, int) { return stage(r, 0.0); }, {1, 2, 1, 1}) == "");
  CHECK(name([&](int r, int) { return stage(r, 0.2); }, {1, 2, 1, 1}) == "pp=2;");
}

TEST_CASE("stages that sleep: the one that is stretched is named with the step", "[observe][heat_map]") {
  constexpr int steps = 24;
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
  observe::step_times times(mesh::size());
  hd::testing::faults slow{{.rank = 3, .kind = hd::activity::forward, .from_step = 4, .stretch = 3.0}};
  hd::observers watch(times, slow);
  std::vector<observe::slow_part> named;
  std::string text, csv, svg;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    for (int step = 0; step < steps; ++step) {
      hd::event e = event_of(hd::activity::forward, world.rank(), step, 0, 0);
      hd::observed(watch, e, [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
      e.kind = hd::activity::collective;
      hd::observed(watch, e, [&] { world.all().barrier(); });
    }
    const observe::heat_map map(times, world.control(), observe::roles_along<pp>(world.mesh()));
    if (world.rank() == 0) {
      named = map.slow(world.mesh());
      text = map.to_text();
      csv = map.to_csv();
      svg = map.to_svg();
    }
  });
  INFO(text);
  REQUIRE(!named.empty());
  CHECK(named[0].name == "rank 3 (dp=0, pp=1, tp=1)");
  CHECK(named[0].since_step <= 12);
  CHECK(to_string(named[0]).find("longer than its peers since step ") != std::string::npos);
  CHECK(text.find("slow since step") != std::string::npos);
  CHECK(csv.find("rank,step,seconds,excess\n0,0,") == 0);
  CHECK(svg.find("rank 3 computes") != std::string::npos);
}

namespace {
struct stretched_runs {
  int named = 0, wrong = 0;
};
// Runs of so many steps of `work`, a rank of which takes `stretch` times as long: in how many it is named, and whoever else is.
template <class Work>
stretched_runs runs_with_one_slow(int ranks, int runs, int steps, double stretch, const Work& work) {
  stretched_runs all;
  for (int run = 0; run < runs; ++run) {
    const int culprit = run % ranks;
    observe::step_times times(ranks);
    hd::testing::faults slow{{.rank = culprit, .kind = hd::activity::forward, .stretch = stretch}};
    hd::observers watch(times, slow);
    bool found = false, other = false;
    hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{ranks}, [&](auto& world) {
      for (int step = 0; step < steps; ++step) {
        hd::observed(watch, event_of(hd::activity::forward, world.rank(), step, 0, 0), work);
        world.all().barrier();
        if (step < 16) continue;
        const observe::heat_map map(times, world.control());
        if (world.rank() != 0) continue;
        for (const auto& s : map.slow()) (s.rank == culprit ? found : other) = true;
      }
    });
    all.named += found ? 1 : 0;
    all.wrong += other ? 1 : 0;
  }
  return all;
}
}  // namespace

// Times of real threads: a machine with much else to do stretches others, too.
TEST_CASE("of eight ranks that sleep 3 ms the one that is 10 % slow is named within 20 steps",
          "[observe][heat_map][slow]") {
  const auto all =
      runs_with_one_slow(8, 20, 20, 1.1, [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  CHECK(all.named >= 19);
  CHECK(all.wrong == 0);
}
TEST_CASE("of two ranks that compute the one that is 20 % slow is named within 30 steps", "[observe][heat_map][slow]") {
  if (std::thread::hardware_concurrency() < 2) return;
  const auto all = runs_with_one_slow(2, 20, 30, 1.2, [] {
    volatile double x = 1;
    for (int i = 0; i < 1'000'000; ++i) x = x * 0.999999 + 1e-6;
  });
  CHECK(all.named >= 19);
  CHECK(all.wrong == 0);
}

TEST_CASE("a heat map that some ranks do not ask for is an error that names both calls", "[observe][heat_map]") {
  using Catch::Matchers::Contains;
  observe::step_times times(3);
  const auto run = [&](auto&& other) {
    hd::launch<hd::threads, hd::mesh<hd::axis<dp, 3>>>([&](auto& world) {
      if (world.rank() == 1) return other(world);
      const observe::heat_map map(times, world.control());
      world.control().barrier();
    });
  };
  CHECK_THROWS_WITH(run([](auto& world) { world.control().barrier(); }),
                    Contains("ranks disagree about call 1 on communicator (control): rank 1 entered barrier; rank ") &&
                        Contains(" entered all_reduce of 1 ") && Contains(" with minimum"));
  CHECK_THROWS_WITH(run([](auto&) {}), Contains(" waits in all_reduce of 1 ") &&
                                           Contains(" with minimum, call 1 on communicator (control) for rank 1, whose "
                                                    "body has returned"));
}

TEST_CASE("times that do not fit are refused", "[observe][heat_map]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(observe::step_times(0), Contains("at least one rank, got 0"));
  CHECK_THROWS_WITH(observe::step_times(2, 1), Contains("a window of at least 2 steps, got 1"));
  CHECK_THROWS_WITH(observe::step_times(2).last(2), Contains("has ranks 0 to 1, not 2"));
  const std::vector<std::vector<double>> rows(2, std::vector<double>(20, 1.0));
  CHECK_THROWS_WITH(observe::heat_map({{1.0}, {1.0, 2.0}}, 0), Contains("should have 1 steps, one has 2"));
  CHECK_THROWS_WITH(observe::heat_map(rows, 0, {0}), Contains("1 roles for 2 ranks"));
  CHECK_THROWS_WITH(observe::heat_map(rows, 0, {0, 1}, {1.0}), Contains("role 1 where there are 1 expected times"));
  CHECK_THROWS_WITH(observe::heat_map(rows, 0, {0, 0}, {0.0}), Contains("should be positive"));
  CHECK_THROWS_WITH(observe::heat_map(rows, 0, {}, {}, {.over = 0}), Contains("1 or more steps and windows"));
  CHECK_THROWS_WITH(observe::heat_map(rows, 0).slow(hd::mesh<hd::axis<dp, 4>>{}),
                    Contains("times are of 2 ranks, there are 4"));
  observe::step_times of_three(3);
  CHECK_THROWS_WITH((hd::launch<hd::threads, hd::mesh<hd::axis<dp, 2>>>(
                        [&](auto& world) { const observe::heat_map map(of_three, world.control()); })),
                    Contains("times are of 3 ranks, there are 2"));
  CHECK(observe::heat_map(rows, 0).slow().empty());  // all equal
}

}  // namespace heat_map_test

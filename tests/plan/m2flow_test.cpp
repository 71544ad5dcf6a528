// tests/plan/m2flow_test.cpp: plans of workflows equal the best of all plans, whose seconds are simulated chunk by chunk.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/m2flow.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan = heddle::plan;
using Catch::Matchers::Contains;

namespace {

constexpr double never_ends = std::numeric_limits<double>::infinity();
using kind = plan::flow_step::kind;

// All plans, written out one by one.
struct tree {
  kind what;
  int task, first, devices;
  std::shared_ptr<tree> left, right;
};
using tree_list = std::vector<std::shared_ptr<tree>>;

bool has(unsigned set, int t) {
  return (set >> t & 1u) != 0;
}

tree_list all_plans(unsigned set, int first, int devices, const std::vector<std::pair<int, int>>& edges) {
  tree_list all;
  for (int t = 0; t < 8; ++t)
    if (set == 1u << t) all.push_back(std::make_shared<tree>(tree{kind::task, t, first, devices, nullptr, nullptr}));
  for (unsigned left = 1; left < set; ++left) {
    if ((left & set) != left) continue;
    const bool is_before = std::none_of(
        edges.begin(), edges.end(), [&](const auto& e) { return has(left, e.second) && has(set & ~left, e.first); });
    if (!is_before) continue;
    const auto join = [&](kind what, const tree_list& a, const tree_list& b) {
      for (const auto& x : a)
        for (const auto& y : b) all.push_back(std::make_shared<tree>(tree{what, -1, first, devices, x, y}));
    };
    join(kind::temporal, all_plans(left, first, devices, edges), all_plans(set & ~left, first, devices, edges));
    for (int n = 1; n < devices; ++n)
      join(kind::spatial, all_plans(left, first, n, edges), all_plans(set & ~left, first + n, devices - n, edges));
  }
  return all;
}

// A workflow with a table of seconds.
struct drawn_workflow {
  plan::workflow flow;
  std::vector<std::vector<double>> seconds, switching;  // of each task on n + 1 devices
};
std::shared_ptr<drawn_workflow> drawn(const heddle::counter_random& draw, int tasks, int devices,
                                      std::vector<std::pair<int, int>> edges, bool switches) {
  auto w = std::make_shared<drawn_workflow>();
  std::uint64_t at = 0;
  for (int t = 0; t < tasks; ++t) {
    w->flow.tasks.push_back("t" + std::to_string(t));
    const double work = 1 + draw.uniform(at++) * 20;
    w->seconds.emplace_back();
    w->switching.emplace_back();
    for (int n = 1; n <= devices; ++n) {
      const bool possible = draw.uniform(at++) > 0.1;
      w->seconds.back().push_back(possible ? work / std::pow(n, 0.4 + 0.8 * draw.uniform(at++)) : never_ends);
      w->switching.back().push_back(2 * draw.uniform(at++));
    }
  }
  w->flow.edges = std::move(edges);
  const drawn_workflow* of = w.get();
  w->flow.seconds = [of](int t, int n) {
    return of->seconds[static_cast<std::size_t>(t)][static_cast<std::size_t>(n - 1)];
  };
  if (switches) {
    w->flow.switching = [of](int t, int n) {
      return of->switching[static_cast<std::size_t>(t)][static_cast<std::size_t>(n - 1)];
    };
    w->flow.weights = {{tasks - 1, 0, draw.uniform(at), 3 * draw.uniform(at + 1)}};
  }
  return w;
}

// The end of the last chunk in a chain of tasks 0, 1, ..., each of which takes a chunk when it is free and the task before it has done it;
// what follows on the same devices begins when all before it have ended.
struct chunk_simulation {
  const plan::workflow& flow;
  int chunks;
  std::vector<std::vector<double>> ends{};
  double last_end(const tree& t) const {
    if (t.what == kind::task) return ends[static_cast<std::size_t>(t.task)].back();
    return (std::max)(last_end(*t.left), last_end(*t.right));
  }
  void run(const tree& t, double not_before) {
    if (t.what != kind::task) {
      run(*t.left, not_before);
      run(*t.right, t.what == kind::temporal ? last_end(*t.left) : not_before);
      return;
    }
    const double each = flow.seconds(t.task, t.devices) / chunks;
    double now = not_before;
    ends.emplace_back();
    for (int c = 0; c < chunks; ++c) {
      if (t.task > 0) now = (std::max)(now, ends[static_cast<std::size_t>(t.task - 1)][static_cast<std::size_t>(c)]);
      ends.back().push_back(now += each);
    }
  }
};

// Phases as the documentation has them, by lists.
struct phase {
  double warm, per;
};
struct listed {
  std::vector<phase> phases;
  unsigned tasks;
  double weights;
};
listed phases_of(const tree& t, const plan::workflow& flow, int chunks, bool shared) {
  if (t.what == kind::task) {
    const double per = flow.seconds(t.task, t.devices) / chunks;
    return {{{per + (shared && flow.switching ? flow.switching(t.task, t.devices) : 0), per}}, 1u << t.task, 0};
  }
  const bool temporal = t.what == kind::temporal;
  listed a = phases_of(*t.left, flow, chunks, shared || temporal);
  const listed b = phases_of(*t.right, flow, chunks, shared || temporal);
  a.weights += b.weights;
  for (const plan::flow_weights& w : flow.weights)
    if ((has(a.tasks, w.from) && has(b.tasks, w.to)) || (has(b.tasks, w.from) && has(a.tasks, w.to)))
      a.weights += temporal ? w.together : w.apart;
  std::size_t from = 0;
  if (!temporal) {
    const bool reads = std::any_of(flow.edges.begin(), flow.edges.end(),
                                   [&](const auto& e) { return has(a.tasks, e.first) && has(b.tasks, e.second); });
    phase& joined = a.phases.back();
    joined.warm = reads ? joined.warm + b.phases[0].warm : (std::max)(joined.warm, b.phases[0].warm);
    joined.per = (std::max)(joined.per, b.phases[0].per);
    from = 1;
  }
  a.phases.insert(a.phases.end(), b.phases.begin() + static_cast<std::ptrdiff_t>(from), b.phases.end());
  a.tasks |= b.tasks;
  return a;
}
double seconds_of_tree(const tree& t, const plan::workflow& flow, int chunks) {
  const listed all = phases_of(t, flow, chunks, false);
  double sum = all.weights;
  for (const phase& p : all.phases) sum += p.warm + p.per * (chunks - 1);
  return sum;
}

bool is_hybrid(const tree& t, kind of) {
  return t.what != kind::task && (t.what != of || is_hybrid(*t.left, of) || is_hybrid(*t.right, of));
}

// No device works longer than the plan takes.
void check_busy(const plan::flow_plan& p, const plan::workflow& flow, int devices) {
  for (int d = 0; d < devices; ++d) {
    double busy = 0;
    for (const plan::flow_step& s : p.steps)
      if (s.what == kind::task && d >= s.first && d < s.first + s.devices) busy += flow.seconds(s.task, s.devices);
    CHECK(busy <= p.seconds * (1 + 1e-12));
  }
}

plan::workflow reasoning() {  // rollout, inference, training on 8 devices; RLinf's tool
  plan::workflow flow;
  flow.tasks = {"rollout", "inference", "training"};
  flow.edges = {{0, 1}, {1, 2}};
  flow.seconds = [](int task, int n) {
    return task == 0 ? 59.9 * 8 / n : task == 1 ? plan::fewer_devices(30.8, 8, n) : plan::fewer_devices(95.7, 8, n);
  };
  return flow;
}

}  // namespace

TEST_CASE("the plan of a chain is the best of all, simulated chunk by chunk", "[plan][m2flow]") {
  const std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  int hybrids_that_win = 0;
  for (int tasks = 1; tasks <= 4; ++tasks) {
    std::vector<std::pair<int, int>> chain;
    for (int t = 1; t < tasks; ++t) chain.emplace_back(t - 1, t);
    std::vector<tree_list> plans;
    for (int devices = 1; devices <= 8; ++devices) plans.push_back(all_plans((1u << tasks) - 1, 0, devices, chain));
    if (tasks == 4) REQUIRE(plans.back().size() == 628);
    for (int i = 0; i < 250; ++i) {
      const heddle::counter_random draw(seed, static_cast<std::uint64_t>(tasks * 1000 + i));
      const int devices = 1 + static_cast<int>(draw.integer(0) % 8), chunks = 1 + static_cast<int>(draw.integer(1) % 9);
      CAPTURE(tasks, i, devices, chunks);
      const auto w = drawn(heddle::counter_random(seed + 1, static_cast<std::uint64_t>(tasks * 1000 + i)), tasks,
                           devices, chain, false);
      double best = never_ends, best_pure = never_ends;
      for (const auto& t : plans[static_cast<std::size_t>(devices - 1)]) {
        chunk_simulation run{w->flow, chunks};
        run.run(*t, 0);
        const double end = run.last_end(*t);
        best = (std::min)(best, end);
        if (!is_hybrid(*t, kind::temporal) || !is_hybrid(*t, kind::spatial)) best_pure = (std::min)(best_pure, end);
      }
      if (best < best_pure * 0.999) ++hybrids_that_win;
      for (const bool hybrids : {true, false}) {
        const plan::flow_options options{chunks, hybrids};
        const double expected = hybrids ? best : best_pure;
        if (expected == never_ends) {
          CHECK_THROWS_WITH(plan::m2flow(w->flow, devices, options), Contains("no plan"));
          continue;
        }
        const plan::flow_plan p = plan::m2flow(w->flow, devices, options);
        CHECK(p.seconds == Approx(expected).epsilon(1e-12));
        CHECK(plan::seconds_of(p, w->flow, options) == Approx(p.seconds).epsilon(1e-12));
        check_busy(p, w->flow, devices);
      }
    }
  }
  CAPTURE(hybrids_that_win);
  CHECK(hybrids_that_win > 100);
}

TEST_CASE("the plan of any workflow is the best of all, with switches and weights", "[plan][m2flow]") {
  const std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  for (int i = 0; i < 100; ++i) {
    const heddle::counter_random draw(seed, static_cast<std::uint64_t>(i));
    const int tasks = 2 + static_cast<int>(draw.integer(0) % 3), devices = 1 + static_cast<int>(draw.integer(1) % 6);
    const int chunks = 1 + static_cast<int>(draw.integer(2) % 9);
    std::vector<std::pair<int, int>> edges;
    for (int a = 0; a < tasks; ++a)
      for (int b = a + 1; b < tasks; ++b)
        if (draw.integer(static_cast<std::uint64_t>(10 + a * 4 + b)) % 2 == 0) edges.emplace_back(a, b);
    CAPTURE(i, tasks, devices, chunks, edges.size());
    const auto w = drawn(heddle::counter_random(seed + 1, static_cast<std::uint64_t>(i)), tasks, devices, edges, true);
    double best = never_ends;
    for (const auto& t : all_plans((1u << tasks) - 1, 0, devices, edges))
      best = (std::min)(best, seconds_of_tree(*t, w->flow, chunks));
    if (best == never_ends) {
      CHECK_THROWS_WITH(plan::m2flow(w->flow, devices, {chunks}), Contains("no plan"));
      continue;
    }
    const plan::flow_plan p = plan::m2flow(w->flow, devices, {chunks});
    CHECK(p.seconds == Approx(best).epsilon(1e-12));
    CHECK(plan::seconds_of(p, w->flow, {chunks}) == Approx(p.seconds).epsilon(1e-12));
    check_busy(p, w->flow, devices);
  }
}

TEST_CASE("RLinf's example is planned as its tool does", "[plan][m2flow]") {
  const plan::workflow flow = reasoning();
  const plan::flow_plan spatial = plan::m2flow(flow, 8, {64, false});
  CHECK(std::abs(spatial.seconds - 164.4) < 0.1);
  CHECK(to_string(spatial, flow) == "rollout [0-2] | inference [3] | training [4-7]");
  const plan::flow_plan one = plan::m2flow(flow, 8, {1, false});  // nothing overlaps
  CHECK(one.seconds == Approx(186.4));
  CHECK(to_string(one, flow) == "rollout [0-7] ; inference [0-7] ; training [0-7]");
  const plan::flow_plan any = plan::m2flow(flow, 8, {64, true});
  CHECK(any.seconds <= spatial.seconds);
  check_busy(any, flow, 8);
  // Switches cost: at last each task keeps its devices.
  plan::workflow slow = flow;
  slow.switching = [](int, int) { return 1000.0; };
  CHECK(to_string(plan::m2flow(slow, 8, {64, true}), flow) == "rollout [0-2] | inference [3] | training [4-7]");
  // With two devices for each model there are no odd numbers.
  plan::workflow pairs = flow;
  pairs.seconds = [&](int t, int n) { return n % 2 == 0 ? flow.seconds(t, n) : never_ends; };
  const plan::flow_plan even = plan::m2flow(pairs, 8, {64, false});
  for (int t = 0; t < 3; ++t) CHECK(even.of(t).devices % 2 == 0);
  CHECK(even.seconds > spatial.seconds);
  // One device behind the others is tried.
  plan::workflow small = flow;
  small.seconds = [](int t, int n) { return t == 2 ? 1.0 : n < 3 ? never_ends : 40.0; };
  CHECK(to_string(plan::m2flow(small, 7), flow) == "rollout [0-2] | inference [3-5] | training [6]");
}

TEST_CASE("four tasks on 1,024 devices are planned in less than a second of a processor", "[plan][m2flow]") {
  plan::workflow w;
  w.tasks = {"rollout", "reference", "critic", "training"};
  w.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  w.seconds = [](int task, int devices) {
    constexpr double whole[] = {3000, 400, 500, 2000};
    return whole[task] / devices + 0.001 * devices;
  };
  w.switching = [](int, int) { return 2.0; };
  const std::clock_t began = std::clock();
  const plan::flow_plan p = plan::m2flow(w, 1024);
  CHECK(static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC < 1);
  CHECK(plan::seconds_of(p, w) == Approx(p.seconds).epsilon(1e-12));
  check_busy(p, w, 1024);
}

TEST_CASE("workflows that cannot be planned are refused", "[plan][m2flow]") {
  plan::workflow flow = reasoning();
  CHECK_THROWS_WITH(plan::m2flow(flow, 0), Contains("at least 1 device, got 3, 64 and 0"));
  CHECK_THROWS_WITH(plan::m2flow(flow, 8, {0}), Contains("got 3, 0 and 8"));
  flow.edges.emplace_back(2, 0);
  CHECK_THROWS_WITH(plan::m2flow(flow, 8), Contains("circle"));
  flow.edges.back() = {2, 3};
  CHECK_THROWS_WITH(plan::m2flow(flow, 8), Contains("task 3 is none of the workflow's 3"));
  plan::flow_plan two = plan::m2flow(reasoning(), 8);
  flow = reasoning();
  flow.tasks.push_back("critic");
  CHECK_THROWS_WITH(plan::seconds_of(two, flow), Contains("other tasks than the workflow's 4"));
  CHECK_THROWS_WITH(two.of(3), Contains("no task 3"));
}

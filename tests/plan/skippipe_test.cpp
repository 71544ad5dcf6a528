// tests/plan/skippipe_test.cpp: planned ways obey the rules, are balanced and collision-free, and as fast as can be.
#include "catch.hpp"
#include "skippipe_cities/published.hpp"

#include <heddle/plan/skippipe.hpp>
#include <heddle/sim/serial_nodes.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace plan = heddle::plan;

namespace {

// The rules again, from the stages alone, the obvious way.
bool obeys(const std::vector<int>& stages, int most_jump, int longest, int total, int count) {
  if (stages.empty() || stages[0] != 0) return false;
  int frontier = 0, swaps = 0, distance = 0, worst = 0;
  for (std::size_t k = 1; k < stages.size(); ++k) {
    if (std::count(stages.begin(), stages.end(), stages[k]) != 1) return false;
    if (std::abs(stages[k] - frontier) > most_jump) return false;
    if (stages[k] < frontier) {
      ++swaps;
      distance += frontier - stages[k];
      worst = (std::max)(worst, frontier - stages[k]);
    }
    frontier = (std::max)(frontier, stages[k]);
  }
  return swaps <= count && distance <= total && worst <= longest;
}

std::vector<int> stages_of(const sc::path_table& t, int i) {
  std::vector<int> s;
  for (const int n : t.path(i)) s.push_back(t.stage_of_node[static_cast<std::size_t>(n)]);
  return s;
}

// Everything that must hold of a plan, whatever the costs.
void check_plan(const plan::skip_plan& p, const sc::visit_costs& costs, const plan::skip_options& o) {
  const sc::path_table& t = p.paths;
  CHECK_NOTHROW(sc::require_paths(t));
  REQUIRE(t.microbatches() % o.waves == 0);
  const int wave = t.microbatches() / o.waves;
  bool legal = true;
  for (int i = 0; i < t.microbatches(); ++i) {
    legal = legal && obeys(stages_of(t, i), 4, 1, 2, 2);
    legal = legal && t.waits_for(i) == (i < wave ? -1 : i - wave);
  }
  CHECK(legal);
  for (int n = 0; n < t.nodes(); ++n) {
    CAPTURE(n);
    CHECK(t.visits_of_nodes()[static_cast<std::size_t>(n)] <= o.slots * o.waves);
  }
  // The planned times: walked without a jump in time, and no two of a node that TC2 forbids.
  std::vector<double> at(static_cast<std::size_t>(wave), 0);
  std::vector<int> before(at.size(), -1), position(at.size(), 0);
  bool walked = true;
  auto visits = p.planned.visits;
  REQUIRE(visits.size() == static_cast<std::size_t>(wave * t.visits()));
  std::sort(visits.begin(), visits.end(), sc::begins_before);
  for (const sc::visit& v : visits) {
    const auto i = static_cast<std::size_t>(v.microbatch);
    double arrival = position[i] == 0 ? t.ready_at(v.microbatch) : at[i];
    if (before[i] >= 0 && before[i] != v.node) arrival += costs.send(before[i], v.node);
    walked = walked && v.position == position[i]++ && v.node == t.node_at(v.microbatch, v.position);
    walked = walked && v.start >= arrival - 1e-9;
    walked = walked && v.end - v.start == Approx(costs.work(v.node, v.position, t.length));
    at[i] = v.end;
    before[i] = v.node;
  }
  CHECK(walked);
  CHECK(p.collision_free == !sc::find_collision(p.planned, t.length).found);
  if (o.avoid_collisions) CHECK(p.collision_free);
}

struct problem {
  sc::visit_costs costs;
  std::vector<int> stage_of_node;
};
problem random_problem(std::mt19937& random, const std::vector<int>& sizes) {
  problem p;
  for (std::size_t s = 0; s < sizes.size(); ++s)
    for (int k = 0; k < sizes[s]; ++k) p.stage_of_node.push_back(static_cast<int>(s));
  const auto n = p.stage_of_node.size();
  std::uniform_real_distribution<double> work(0.5, 1.5), link(0.2, 3);
  for (std::size_t i = 0; i < n; ++i) p.costs.forward.push_back(work(random));
  p.costs.message.assign(n * n, 0);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) p.costs.message[a * n + b] = p.costs.message[b * n + a] = link(random);
  return p;
}

// All ways of one origin that the rules allow.
std::vector<std::vector<int>> ways_from(const std::vector<int>& stage_of_node, int origin, int length) {
  std::vector<std::vector<int>> whole, partial{{origin}};
  while (!partial.empty()) {
    const std::vector<int> way = partial.back();
    partial.pop_back();
    if (static_cast<int>(way.size()) == length) {
      whole.push_back(way);
      continue;
    }
    for (int n = 0; n < static_cast<int>(stage_of_node.size()); ++n) {
      std::vector<int> longer = way, stages;
      longer.push_back(n);
      for (const int k : longer) stages.push_back(stage_of_node[static_cast<std::size_t>(k)]);
      if (obeys(stages, 4, 1, 2, 2)) partial.push_back(longer);
    }
  }
  return whole;
}

double alone(const sc::visit_costs& costs, const std::vector<int>& way, double t) {
  const int length = static_cast<int>(way.size());
  int before = way[0];
  for (int k = 0; k <= 2 * length; ++k) {
    const int node = way[static_cast<std::size_t>(k < length ? k : k == length ? 0 : 2 * length - k)];
    t += (node == before ? 0 : costs.send(before, node)) + costs.work(node, k, length);
    before = node;
  }
  return t;
}

// The least makespan of fixed ways without a collision: all orders in which visits can be placed, each as early as it can.
struct all_orders {
  const sc::visit_costs& costs;
  const std::vector<std::vector<int>>& ways;
  int length;
  double best = std::numeric_limits<double>::infinity();
  struct placed {
    int node, position;
    double start, end;
  };
  std::vector<placed> done{};
  std::vector<int> position{};
  std::vector<double> at{};

  void go(double so_far) {
    if (so_far >= best) return;
    bool over = true;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const int k = position[i];
      if (k > 2 * length) continue;
      over = false;
      const auto node_at = [&](int j) {
        return ways[i][static_cast<std::size_t>(j < length ? j : j == length ? 0 : 2 * length - j)];
      };
      const int node = node_at(k);
      double start = at[i];
      if (k > 0 && node_at(k - 1) != node) start += costs.send(node_at(k - 1), node);
      const double work = costs.work(node, k, length);
      for (const placed& p : done)
        if (p.node == node && !(p.position > length && k > length)) start = (std::max)(start, p.end);
      const double was = std::exchange(at[i], start + work);
      ++position[i];
      done.push_back({node, k, start, start + work});
      go((std::max)(so_far, start + work));
      done.pop_back();
      --position[i];
      at[i] = was;
    }
    if (over) best = so_far;
  }
};

constexpr std::array in_order{0, 1, 3, 5};
constexpr std::array swapped{0, 2, 1, 3};
constexpr std::array far_jump{0, 5};
constexpr std::array twice{0, 1, 1};
constexpr std::array back_two{0, 3, 1};
constexpr std::array late{1, 2};
static_assert(plan::allowed<plan::published_rules>(in_order) && plan::allowed<plan::published_rules>(swapped));
static_assert(!plan::allowed<plan::published_rules>(far_jump) && !plan::allowed<plan::published_rules>(twice));
static_assert(!plan::allowed<plan::published_rules>(back_two) && !plan::allowed<plan::published_rules>(late));
static_assert(!plan::allowed<plan::skip_rules<plan::keep_first_stage, plan::no_swaps>>(swapped));
static_assert(plan::allowed<plan::skip_rules<>>(late), "a rule that is left out does not hold");

// A rule of a user's own: stage 2 is never skipped.
struct needs_stage_two {
  static constexpr bool may_visit(const plan::path_view& p, int stage) { return stage <= 2 || p.frontier >= 2; }
};
static_assert(plan::path_rules<needs_stage_two>);

void plan_published(double forward, const std::vector<int>& all_copies, int exchanges) {
  const hd::sim::serial_nodes nodes;
  const sc::visit_costs costs = published::costs(forward);
  const auto score = [&](const sc::path_table& t) { return nodes.seconds(t, costs); };
  const double full = score(published::full_pipeline());
  for (const int copies : all_copies) {
    CAPTURE(forward, copies);
    plan::skip_options o;
    o.copies = copies;
    o.exchanges = exchanges;
    const plan::skip_plan aware = plan::skippipe(costs, published::stage_of_node, published::stages, o, score);
    check_plan(aware, costs, o);
    CHECK(aware.seconds == score(aware.paths));
    CHECK(aware.seconds <= aware.searched_seconds);
    CHECK(aware.seconds <= 0.5 * full);
    // 45 visits on 15 nodes with 3 slots: all are needed.
    for (int n = 0; n < 20; ++n) CHECK(aware.paths.visits_of_nodes()[static_cast<std::size_t>(n)] == 6);
    for (int s = 1; s < 6; ++s) CHECK(aware.paths.visits_of_stages()[static_cast<std::size_t>(s)] == 18);
    CHECK(aware.paths.microbatches() == 30);

    o.avoid_collisions = false;
    const plan::skip_plan balanced = plan::skippipe(costs, published::stage_of_node, published::stages, o, score);
    check_plan(balanced, costs, o);
    CHECK(balanced.seconds <= score(published::balanced(forward)) * (1 + 1e-9));
    CHECK(aware.seconds <= balanced.seconds);
    if (copies == 3) {
      CHECK(aware.seconds <= score(published::collision_aware()) * (1 + 1e-9));
      if (forward == 0.44) CHECK(aware.seconds <= 33.314);
    } else if (forward == 0.44) {
      CHECK(aware.seconds <= 33.314 * 1.02);
    }
  }
}

}  // namespace

TEST_CASE("the rules of ways are those of the definition", "[plan][skippipe]") {
  std::vector<int> stages;
  int legal = 0, all = 0;
  const std::function<void()> longer = [&] {
    if (!stages.empty()) {
      ++all;
      const bool allowed = plan::allowed<plan::published_rules>(stages);
      if (allowed != obeys(stages, 4, 1, 2, 2)) FAIL("differs for a way of " << stages.size() << " stages");
      legal += allowed ? 1 : 0;
    }
    if (stages.size() == 5) return;
    for (int s = 0; s < 7; ++s) {
      stages.push_back(s);
      longer();
      stages.pop_back();
    }
  };
  longer();
  CHECK(all == 7 + 49 + 343 + 2401 + 16807);
  CHECK(legal > 50);
}

TEST_CASE("the published case is planned as well as it was published, or better", "[plan][skippipe]") {
  plan_published(0.44, {1, 3}, 150);
}

TEST_CASE("the published case with slower nodes is, too", "[plan][skippipe]") {
  plan_published(1.76, {3}, 0);
}

TEST_CASE("the published case with more exchanges, and a way for each microbatch", "[plan][skippipe][slow]") {
  plan_published(0.44, {1, 3}, 2000);
  plan_published(1.76, {1, 3}, 2000);
}

TEST_CASE("a plan blind to costs is balanced, but slow", "[plan][skippipe]") {
  sc::visit_costs costs = published::costs();
  costs.message = published::twenty_node_links().all_seconds(published::message_bytes, published::message_overhead);
  const hd::sim::serial_nodes nodes;
  const auto score = [&](const sc::path_table& t) { return nodes.seconds(t, costs); };
  plan::skip_options o;
  const plan::skip_plan blind = plan::skippipe_cost_blind(costs, published::stage_of_node, 6, o, score);
  sc::visit_costs ones = costs;
  ones.forward.assign(20, 1);
  ones.message.assign(400, 1);
  o.avoid_collisions = false;
  check_plan(blind, ones, o);
  CHECK(blind.seconds == score(blind.paths));
  CHECK(blind.seconds > 1.2 * score(published::collision_aware()));
}

TEST_CASE("plans of random networks obey the rules, balanced and without collisions", "[plan][skippipe][property]") {
  const unsigned seed = 7;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const problem p = random_problem(random, round % 2 == 0 ? std::vector{2, 2, 1, 1} : std::vector{2, 2, 2, 2, 2});
    plan::skip_options o;
    o.path_length = round % 2 == 0 ? 3 : 2 + round % 4;
    o.wave_seconds = 1;
    o.search_nodes = 800;
    o.exchanges = round % 3 == 0 ? 0 : 200;
    const int stages = round % 2 == 0 ? 4 : 5;
    if (round % 2 != 0 && o.path_length == 5) o.path_length = 4;
    const hd::sim::serial_nodes nodes;
    const auto score = [&](const sc::path_table& t) { return nodes.seconds(t, p.costs); };
    const plan::skip_plan aware = plan::skippipe(p.costs, p.stage_of_node, stages, o, score);
    check_plan(aware, p.costs, o);
    o.avoid_collisions = false;
    const plan::skip_plan balanced = plan::skippipe(p.costs, p.stage_of_node, stages, o, score);
    check_plan(balanced, p.costs, o);
    CHECK(aware.seconds <= balanced.seconds);  // which is a candidate, too
    CHECK(plan::skippipe(p.costs, p.stage_of_node, stages, o, score).paths == balanced.paths);  // deterministic
  }
}

TEST_CASE("visits are even where that is asked for, also where nodes have more slots", "[plan][skippipe][property]") {
  const unsigned seed = 17;
  CAPTURE(seed);
  std::mt19937 random(seed);
  int uneven = 0;
  for (int round = 0; round < 32; ++round) {
    CAPTURE(round);
    const std::vector<int> sizes = round >= 24      ? std::vector{1, 3, 3}
                                   : round % 3 == 0 ? std::vector{2, 2, 2}
                                   : round % 3 == 1 ? std::vector{1, 1, 1, 1}
                                                    : std::vector{2, 1, 2, 1, 1};
    const problem p = random_problem(random, sizes);
    plan::skip_options o{.path_length = round % 3 == 0 || round >= 20 ? 2 : 3, .slots = 6, .per_origin = 1 + round % 4};
    o.copies = o.per_origin == 2 && round % 8 == 1 ? 2 : 1;
    o.exchanges = 100;
    const int stages = static_cast<int>(sizes.size());
    const auto visits = [&](bool even) {
      o.even_visits = even;
      const plan::skip_plan plan = plan::skippipe(p.costs, p.stage_of_node, stages, o);
      check_plan(plan, p.costs, o);
      return plan.paths.visits_of_nodes();
    };
    const int others = static_cast<int>(p.stage_of_node.size()) - sizes[0];
    const int ways = sizes[0] * o.per_origin / o.copies * (o.path_length - 1);
    const int most = (ways + others - 1) / others * o.copies * o.waves, least = ways / others * o.copies * o.waves;
    const auto even = visits(true), free = visits(false);
    std::vector<int> of_stage(sizes.size(), 0);
    for (std::size_t n = 0; n < even.size(); ++n) {
      of_stage[static_cast<std::size_t>(p.stage_of_node[n])] += even[n];
      if (p.stage_of_node[n] == 0) continue;
      CHECK(even[n] <= most);
      CHECK(even[n] >= least);
      uneven += free[n] > most ? 1 : 0;
    }
    if (ways + 1 >= stages) CHECK(std::count(of_stage.begin(), of_stage.end(), 0) == 0);
  }
  CHECK(uneven > 0);
}

TEST_CASE("one link of the published table is a slip, and no published plan uses it", "[plan][skippipe]") {
  const auto right = published::twelve_cities(), as_published = published::twelve_cities(false);
  for (int a = 0; a < 12; ++a)
    for (int b = 0; b < 12; ++b) {
      const bool slip = (a == 7 && b == 11) || (a == 11 && b == 7);
      CHECK((right(a, b).bytes_per_second != as_published(a, b).bytes_per_second) == slip);
    }
  CHECK(as_published.seconds(7, 11, published::message_bytes, published::message_overhead) > 131);
  CHECK(right.seconds(7, 11, published::message_bytes, published::message_overhead) < 0.5);
  for (const sc::path_table& t :
       {published::full_pipeline(), published::cost_blind(), published::balanced(), published::collision_aware()})
    for (int i = 0; i < t.microbatches(); ++i)
      for (int k = 0; k + 1 < t.visits(); ++k) {
        const auto city = [&](int at) { return published::twenty_nodes[static_cast<std::size_t>(t.node_at(i, at))]; };
        if (city(k) + city(k + 1) == 18 && city(k) * city(k + 1) == 77) FAIL("microbatch " << i);
      }
}

TEST_CASE("without limits the search finds the least time there is", "[plan][skippipe][property]") {
  const unsigned seed = 11;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 48; ++round) {
    CAPTURE(round);
    const problem p = random_problem(random, {1, 2, 2, 1});
    plan::skip_options o;
    o.exhaustive = true;
    o.path_length = 2 + round % 2;
    o.per_origin = round % 3 == 0 ? 3 : 2;
    o.waves = 1;
    o.avoid_collisions = round % 4 >= 2;
    if (o.avoid_collisions) o.per_origin = 2;
    o.slots = o.per_origin;
    const auto ways = ways_from(p.stage_of_node, 0, o.path_length);
    const auto count = static_cast<std::size_t>(o.per_origin);
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> pick(count, 0);
    for (bool more = true; more;) {
      std::vector<std::vector<int>> chosen;
      for (const std::size_t k : pick) chosen.push_back(ways[k]);
      double slowest = 0;
      for (std::size_t i = 0; i < count; ++i)
        slowest = (std::max)(slowest, alone(p.costs, chosen[i], static_cast<double>(i) * p.costs.forward[0]));
      if (slowest < best) {
        if (o.avoid_collisions) {
          all_orders orders{p.costs, chosen, o.path_length};
          orders.best = best;
          orders.position.assign(count, 0);
          for (std::size_t i = 0; i < count; ++i) orders.at.push_back(static_cast<double>(i) * p.costs.forward[0]);
          orders.go(0);
          best = (std::min)(best, orders.best);
        } else {
          best = slowest;
        }
      }
      more = false;
      for (std::size_t k = 0; k < count && !more; ++k) {
        if (++pick[k] < ways.size())
          more = true;
        else
          pick[k] = 0;
      }
    }
    const plan::skip_plan found = plan::skippipe(p.costs, p.stage_of_node, 4, o);
    check_plan(found, p.costs, o);
    CHECK(found.planned.makespan == Approx(best));
  }
}

TEST_CASE("where slots bind the search without limits still finds the least time", "[plan][skippipe][property]") {
  const unsigned seed = 13;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    // Three origins, one microbatch each, one slot per node: no node serves two of them.
    const problem p = random_problem(random, {3, 2, 2, 2});
    plan::skip_options o;
    o.exhaustive = true;
    o.avoid_collisions = false;
    o.path_length = 3;
    o.per_origin = o.slots = o.waves = 1;
    std::array<std::vector<std::vector<int>>, 3> ways;
    for (int a = 0; a < 3; ++a) ways[static_cast<std::size_t>(a)] = ways_from(p.stage_of_node, a, 3);
    double best = std::numeric_limits<double>::infinity();
    for (const auto& x : ways[0])
      for (const auto& y : ways[1])
        for (const auto& z : ways[2]) {
          std::vector<int> used{x[1], x[2], y[1], y[2], z[1], z[2]};
          std::sort(used.begin(), used.end());
          if (std::adjacent_find(used.begin(), used.end()) != used.end()) continue;
          best = (std::min)(best, (std::max)({alone(p.costs, x, 0), alone(p.costs, y, 0), alone(p.costs, z, 0)}));
        }
    const plan::skip_plan found = plan::skippipe(p.costs, p.stage_of_node, 4, o);
    CHECK(found.planned.makespan == Approx(best));
    for (const int n : found.paths.visits_of_nodes()) CHECK(n <= 1);
  }
}

TEST_CASE("a rule of one's own steers the search", "[plan][skippipe]") {
  using rules = plan::skip_rules<plan::max_jump<4>, plan::no_swaps, plan::keep_first_stage, needs_stage_two>;
  plan::skip_options o;
  o.per_origin = o.slots = 3;
  o.path_length = 4;
  std::mt19937 random(3);
  const problem p = random_problem(random, {1, 2, 2, 2, 2});
  const plan::skip_plan found = plan::skippipe<rules>(p.costs, p.stage_of_node, 5, o);
  for (int i = 0; i < found.paths.microbatches(); ++i) {
    const auto stages = stages_of(found.paths, i);
    CHECK(std::count(stages.begin(), stages.end(), 2) == 1);
    CHECK(std::is_sorted(stages.begin(), stages.end()));
  }
}

TEST_CASE("ways in order have no swaps, and without limits they are those of the rule for it",
          "[plan][skippipe][property]") {
  const unsigned seed = 23;
  CAPTURE(seed);
  std::mt19937 random(seed);
  using rules = plan::skip_rules<plan::max_jump<4>, plan::no_swaps, plan::keep_first_stage>;
  int swaps = 0;
  for (int round = 0; round < 24; ++round) {
    CAPTURE(round);
    const problem p = random_problem(random, {1, 1, 2, 1});
    plan::skip_options o{.path_length = 3 + round % 2, .slots = 4, .per_origin = 2, .waves = 1};
    o.even_visits = round % 3 == 0;
    o.exhaustive = round % 4 == 0;
    o.exchanges = 200;
    const auto swapped = [&](const plan::skip_plan& found) {
      check_plan(found, p.costs, o);
      int n = 0;
      for (int i = 0; i < found.paths.microbatches(); ++i) {
        const auto stages = stages_of(found.paths, i);
        n += std::is_sorted(stages.begin(), stages.end()) ? 0 : 1;
      }
      return n;
    };
    swaps += swapped(plan::skippipe(p.costs, p.stage_of_node, 4, o));
    o.in_order = true;
    const plan::skip_plan in_order = plan::skippipe(p.costs, p.stage_of_node, 4, o);
    CHECK(swapped(in_order) == 0);
    if (o.exhaustive)
      CHECK(in_order.planned.makespan == plan::skippipe<rules>(p.costs, p.stage_of_node, 4, o).planned.makespan);
  }
  CHECK(swaps > 0);  // which the option forbids
}

TEST_CASE("a loss that takes no time is in nobody's way", "[plan][skippipe]") {
  problem p;
  p.stage_of_node = {0, 1, 2};
  p.costs.forward.assign(3, 1.0);
  p.costs.message.assign(9, 1.0);
  p.costs.loss_factor = 0;
  plan::skip_options o{.path_length = 2, .slots = 3, .per_origin = 3};
  check_plan(plan::skippipe(p.costs, p.stage_of_node, 3, o), p.costs, o);
  o.exhaustive = true;
  check_plan(plan::skippipe(p.costs, p.stage_of_node, 3, o), p.costs, o);
}

TEST_CASE("many stages, and networks where all ways are alike, are planned, too", "[plan][skippipe]") {
  for (const int stages : {10, 16, 40}) {
    CAPTURE(stages);
    const int nodes = 2 * stages, length = stages * 3 / 4;
    std::vector<int> stage_of_node;
    for (int n = 0; n < nodes; ++n) stage_of_node.push_back(n / 2);
    sc::visit_costs costs;
    costs.forward.assign(static_cast<std::size_t>(nodes), 1.0);
    costs.message.assign(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(nodes), 0.1);
    plan::skip_options o{.path_length = length, .slots = 2, .per_origin = 1, .waves = 1, .search_nodes = 100};
    o.exchanges = 20;
    const plan::skip_plan p = plan::skippipe(costs, stage_of_node, stages, o);
    check_plan(p, costs, o);
    const double alone = 2.5 * length + 0.25 + 0.2 * length;
    CHECK(p.seconds >= alone - 1e-9);
    CHECK(p.seconds < alone + 1.5);  // hardly anybody waits
  }
}

TEST_CASE("a search for ways that is cut short finds ways that are legal, and no better",
          "[plan][skippipe][property]") {
  const unsigned seed = 41;
  CAPTURE(seed);
  std::mt19937 random(seed);
  int slower = 0;
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const problem p = random_problem(random, {1, 2, 2, 1, 2});
    plan::skip_options o{.path_length = 2 + round % 4, .slots = 1, .per_origin = 1, .waves = 1};
    o.exchanges = 0;
    const double best = plan::skippipe(p.costs, p.stage_of_node, 5, o).seconds;
    for (const int states : {0, 1, 10}) {
      o.way_states = states;
      const plan::skip_plan found = plan::skippipe(p.costs, p.stage_of_node, 5, o);
      check_plan(found, p.costs, o);
      CHECK(found.seconds >= best * (1 - 1e-12));
      slower += found.seconds > best * (1 + 1e-12) ? 1 : 0;
    }
  }
  CHECK(slower == 0);  // so few ways are soon all seen
}

TEST_CASE("slots without a limit are as many as there are microbatches", "[plan][skippipe]") {
  std::mt19937 random(23);
  const problem p = random_problem(random, {2, 2, 2, 1});
  plan::skip_options o{.path_length = 3, .slots = 6, .per_origin = 3, .exchanges = 100};
  const plan::skip_plan enough = plan::skippipe(p.costs, p.stage_of_node, 4, o);
  for (const int slots : {(std::numeric_limits<int>::max)(), (std::numeric_limits<int>::max)() / 2 + 2}) {
    o.slots = slots;
    CHECK(plan::skippipe(p.costs, p.stage_of_node, 4, o).paths == enough.paths);
  }
}

TEST_CASE("planning refuses numbers that cannot fit", "[plan][skippipe]") {
  std::mt19937 random(3);
  const problem p = random_problem(random, {2, 1, 1});
  const auto refuse = [&](plan::skip_options o, const char* text) {
    CHECK_THROWS_WITH(plan::skippipe(p.costs, p.stage_of_node, 3, o), Catch::Matchers::Contains(text));
  };
  refuse({.path_length = 4}, "at least one stage and at most all");
  refuse({.path_length = 2, .slots = 3, .per_origin = 4}, "more microbatches in a wave than it has slots");
  refuse({.path_length = 2, .per_origin = 3, .copies = 2}, "do not divide over ways");
  refuse({.path_length = 3, .slots = 3, .per_origin = 3}, "more visits than the nodes have slots");
  refuse({.path_length = 2, .slots = 0}, "at least one");
  CHECK_THROWS_WITH(
      plan::skippipe(p.costs, p.stage_of_node, 4, {.path_length = 2}),
      "heddle: plan::skippipe: stage 3 is held by no node; give it one of the 4, or merge it with its neighbour");
  CHECK_THROWS_AS(plan::skippipe(p.costs, std::vector<int>{0, 1, 2}, 3, {.path_length = 2}), hd::config_error);
  sc::visit_costs negative = p.costs;
  negative.message[1] = -1;
  CHECK_THROWS_AS(plan::skippipe(negative, p.stage_of_node, 3, {.path_length = 2}), hd::config_error);
  // Slots that a way of several copies cannot use are no room.
  refuse({.path_length = 3, .slots = 5, .per_origin = 3, .copies = 3}, "more visits than the nodes have slots");
  // Rules that no way satisfies.
  CHECK_THROWS_AS((plan::skippipe<plan::skip_rules<plan::keep_first_stage, plan::max_jump<1>, plan::swap_limit<0>>>(
                      p.costs, p.stage_of_node, 3, {.path_length = 2, .slots = 3, .per_origin = 3})),
                  hd::schedule_error);
}

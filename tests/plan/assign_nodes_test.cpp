// tests/plan/assign_nodes_test.cpp: nodes go to stages at the least cost, which is that of its definition.
#include "catch.hpp"
#include "skippipe_cities/published.hpp"

#include <heddle/plan/skippipe.hpp>
#include <heddle/plan/skippipe/assign.hpp>
#include <heddle/sim/serial_nodes.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace plan = heddle::plan;

namespace {

sc::visit_costs random_costs(std::mt19937& random, std::size_t n) {
  std::uniform_real_distribution<double> work(0.5, 1.5), link(0.2, 3);
  sc::visit_costs c;
  for (std::size_t i = 0; i < n; ++i) c.forward.push_back(work(random));
  c.message.assign(n * n, 0);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) c.message[a * n + b] = c.message[b * n + a] = link(random);
  return c;
}

// The definition, by all matchings and all tours.
double obvious_cost(const sc::visit_costs& c, const std::vector<int>& of, int stages) {
  std::vector<std::vector<int>> group(static_cast<std::size_t>(stages));
  double inside = 0;
  for (int a = 0; a < c.nodes(); ++a) {
    group[static_cast<std::size_t>(of[static_cast<std::size_t>(a)])].push_back(a);
    for (int b = 0; b < c.nodes(); ++b)
      if (a != b && of[static_cast<std::size_t>(a)] == of[static_cast<std::size_t>(b)])
        inside = (std::max)(inside, c.send(a, b));
  }
  const auto apart = [&](int s, int t) {
    std::vector<int> few = group[static_cast<std::size_t>(s)], many = group[static_cast<std::size_t>(t)];
    if (few.size() > many.size()) std::swap(few, many);
    std::sort(many.begin(), many.end());
    double best = std::numeric_limits<double>::infinity();
    do {
      double worst = 0;
      for (std::size_t k = 0; k < few.size(); ++k) {
        const auto w =
            (std::max)(c.forward[static_cast<std::size_t>(few[k])], c.forward[static_cast<std::size_t>(many[k])]);
        worst = (std::max)(worst, c.send(few[k], many[k]) + w);
      }
      best = (std::min)(best, worst);
    } while (std::next_permutation(many.begin(), many.end()));
    return best;
  };
  std::vector<int> order(static_cast<std::size_t>(stages));
  std::iota(order.begin(), order.end(), 0);
  double tour = std::numeric_limits<double>::infinity();
  do {
    double length = 0;
    for (int k = 0; k < stages && stages > 1; ++k)
      length += apart(order[static_cast<std::size_t>(k)], order[static_cast<std::size_t>((k + 1) % stages)]);
    tour = (std::min)(tour, length);
  } while (std::next_permutation(order.begin() + 1, order.end()));
  return inside + 2 * tour;
}

std::vector<int> sizes_of(const std::vector<int>& of, int stages) {
  std::vector<int> n(static_cast<std::size_t>(stages), 0);
  for (const int s : of) ++n[static_cast<std::size_t>(s)];
  return n;
}

}  // namespace

TEST_CASE("the cost of an assignment is that of its definition", "[plan][skippipe][property]") {
  const unsigned seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    const int stages = 2 + round % 4;
    const auto n = static_cast<std::size_t>(stages + 1 + round % 4);
    const sc::visit_costs c = random_costs(random, n);
    std::vector<int> of(n);
    for (std::size_t i = 0; i < n; ++i) of[i] = static_cast<int>(i) % stages;
    std::shuffle(of.begin(), of.end(), random);
    const plan::assignment_cost cost = plan::cost_of_assignment(c, of, stages);
    CHECK(cost.total() == Approx(obvious_cost(c, of, stages)));
    CHECK(cost.order.front() == 0);
    auto order = cost.order;
    std::sort(order.begin(), order.end());
    for (int k = 0; k < stages; ++k) CHECK(order[static_cast<std::size_t>(k)] == k);
  }
}

TEST_CASE("small assignments are the best there are", "[plan][skippipe][property]") {
  const unsigned seed = 9;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    const std::vector<int> sizes = round % 2 == 0 ? std::vector{3, 2, 2} : std::vector{2, 2, 2, 1};
    const int stages = static_cast<int>(sizes.size());
    const sc::visit_costs c = random_costs(random, 7);
    std::vector<int> of;
    for (int s = 0; s < stages; ++s)
      of.insert(of.end(), static_cast<std::size_t>(sizes[static_cast<std::size_t>(s)]), s);
    double best = std::numeric_limits<double>::infinity();
    do best = (std::min)(best, plan::cost_of_assignment(c, of, stages).total());
    while (std::next_permutation(of.begin(), of.end()));
    const plan::assignment found = plan::assign_nodes(c, sizes, {.population = 30, .offspring = 300});
    CHECK(found.cost.total() == Approx(best));
    CHECK(plan::cost_of_assignment(c, found.stage_of_node, stages).total() == Approx(best));
    auto made = sizes_of(found.stage_of_node, stages);
    CHECK(made[0] == sizes[0]);
    auto asked = sizes;
    std::sort(made.begin(), made.end());
    std::sort(asked.begin(), asked.end());
    CHECK(made == asked);
  }
}

TEST_CASE("twenty nodes in twelve cities are assigned better than published, and planned", "[plan][skippipe]") {
  const sc::visit_costs costs = published::costs();
  const double before = plan::cost_of_assignment(costs, published::stage_of_node, published::stages).total();
  const plan::assignment found =
      plan::assign_nodes(costs, std::array{5, 3, 3, 3, 3, 3}, {.population = 60, .offspring = 300});
  CHECK(found.cost.total() < before);
  CHECK(sizes_of(found.stage_of_node, 6) == std::vector{5, 3, 3, 3, 3, 3});
  // The tour is the order of the stages.
  CHECK(found.cost.order == std::vector{0, 1, 2, 3, 4, 5});
  const hd::sim::serial_nodes nodes;
  const auto score = [&](const sc::path_table& t) { return nodes.seconds(t, costs); };
  const plan::skip_plan planned = plan::skippipe(costs, found.stage_of_node, 6, {.exchanges = 300}, score);
  CHECK(planned.collision_free);
  CHECK(planned.seconds <= 0.5 * score(published::full_pipeline()));
}

TEST_CASE("nodes that cannot reach each other are kept apart", "[plan][skippipe][property]") {
  constexpr double never = std::numeric_limits<double>::infinity();
  const unsigned seed = 31;
  CAPTURE(seed);
  std::mt19937 random(seed);
  int without = 0;
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const std::vector<int> sizes = round % 2 == 0 ? std::vector{2, 1, 1, 1} : std::vector{2, 2, 2};
    const int stages = static_cast<int>(sizes.size());
    const std::size_t n = round % 2 == 0 ? 5 : 6;
    sc::visit_costs c = random_costs(random, n);
    for (std::size_t k = 0; k < 3 + n / 2; ++k) {
      const std::size_t a = random() % n, b = random() % n;
      c.message[a * n + b] = c.message[b * n + a] = never;
    }
    if (round == 11)
      for (std::size_t b = 1; b < n; ++b) c.message[b] = c.message[b * n] = never;  // node 0 reaches nobody
    std::vector<int> of;
    for (int s = 0; s < stages; ++s)
      of.insert(of.end(), static_cast<std::size_t>(sizes[static_cast<std::size_t>(s)]), s);
    double best = never;
    do {
      const double obvious = obvious_cost(c, of, stages);
      const plan::assignment_cost cost = plan::cost_of_assignment(c, of, stages);
      CHECK((cost.total() == obvious || std::abs(cost.total() - obvious) < 1e-9));
      CHECK(cost.order.size() == sizes.size());
      best = (std::min)(best, obvious);
    } while (std::next_permutation(of.begin(), of.end()));
    const plan::assignment found = plan::assign_nodes(c, sizes, {.population = 30, .offspring = 300});
    CHECK(found.stage_of_node.size() == n);
    CHECK((found.cost.total() == best || found.cost.total() < best * (1 + 1e-9)));
    without += best == never ? 1 : 0;
  }
  CHECK(without > 0);
  CHECK(without < 12);
}

TEST_CASE("assignments refuse sizes that do not fit", "[plan][skippipe]") {
  std::mt19937 random(1);
  const sc::visit_costs c = random_costs(random, 5);
  CHECK_THROWS_WITH(plan::assign_nodes(c, std::array{2, 2}), Catch::Matchers::Contains("ask for 4 nodes, there are 5"));
  CHECK_THROWS_AS(plan::assign_nodes(c, std::array{5, 0}), hd::config_error);
  CHECK_THROWS_AS(plan::assign_nodes(c, std::array{3, 2}, {.population = 0}), hd::config_error);
  CHECK_THROWS_AS(plan::cost_of_assignment(c, std::array{0, 1, 0, 1, 2}, 2), hd::config_error);
  CHECK_THROWS_AS(plan::cost_of_assignment(c, std::array{0, 0, 0, 0, 2}, 3), hd::config_error);
  CHECK_THROWS_AS(plan::cost_of_assignment(c, std::array{0, 1, 0, 1}, 2), hd::config_error);
}

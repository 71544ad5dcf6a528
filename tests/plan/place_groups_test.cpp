// tests/plan/place_groups_test.cpp: placements of groups on pods are as good as all that brute force and an integer program find.
#include "catch.hpp"

#include <heddle/collective/round_load.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/rank_order.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/level_bytes.hpp>
#include <heddle/plan/place_groups.hpp>
#include <heddle/plan/placement_svg.hpp>

#include "svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::plan::group_placement;
using hd::plan::group_placements;
using hd::plan::group_request;
using hd::plan::place_groups;

namespace {

constexpr std::uint64_t seed_of_placements = 20261129;

// Fewest pods that groups in at most T pods each use, for T = 1, 2, ...; a large number where there is no way. All ways to take nodes
// for one group after the other, seen as how many nodes of each pod are taken.
std::vector<int> fewest_pods(const group_request& r) {
  const std::size_t pods = r.free_nodes.size();
  std::vector<std::size_t> stride(pods + 1, 1);
  for (std::size_t k = 0; k < pods; ++k) stride[k + 1] = stride[k] * static_cast<std::size_t>(r.free_nodes[k] + 1);
  std::vector<std::pair<std::vector<int>, int>> groups;  // nodes in each pod, and in how many
  std::vector<int> nodes(pods, 0);
  const auto compose = [&](auto&& self, std::size_t pod, int left, int used) -> void {
    if (pod == pods) {
      if (left == 0) groups.emplace_back(nodes, used);
      return;
    }
    for (nodes[pod] = 0; nodes[pod] <= std::min(left, r.free_nodes[pod]); ++nodes[pod])
      self(self, pod + 1, left - nodes[pod], used + (nodes[pod] > 0));
    nodes[pod] = 0;
  };
  compose(compose, 0, r.columns, 0);
  std::vector<int> fewest;
  for (int widest = 1; widest <= r.columns; ++widest) {
    std::vector<std::size_t> states{0}, next;
    for (int row = 0; row < r.rows; ++row) {
      std::vector<char> seen(stride[pods], 0);
      next.clear();
      for (const std::size_t s : states)
        for (const auto& [take, used] : groups) {
          if (used > widest) continue;
          std::size_t to = s;
          bool fits = true;
          for (std::size_t k = 0; k < pods && fits; ++k) {
            const std::size_t extent = static_cast<std::size_t>(r.free_nodes[k] + 1);
            fits = s / stride[k] % extent + static_cast<std::size_t>(take[k]) < extent;
            to += stride[k] * static_cast<std::size_t>(take[k]);
          }
          if (!fits || seen[to] != 0) continue;
          seen[to] = 1;
          next.push_back(to);
        }
      std::swap(states, next);
    }
    int best = 1000;
    for (const std::size_t s : states) {
      int used = 0;
      for (std::size_t k = 0; k < pods; ++k) used += s / stride[k] % static_cast<std::size_t>(r.free_nodes[k] + 1) > 0;
      best = std::min(best, used);
    }
    fewest.push_back(best);
  }
  return fewest;
}

double objective(const group_placement& p, double alpha) {
  return alpha * p.pods + (1 - alpha) * p.widest;
}

// Every cell once, no pod too full, and the numbers are those of the cells. Returns what is wrong.
std::string faults(const group_placement& p, const group_request& r) {
  if (p.pod_of.size() != static_cast<std::size_t>(r.rows) * static_cast<std::size_t>(r.columns))
    return "cells are missing";
  std::vector<int> taken(r.free_nodes.size(), 0);
  std::set<int> pods;
  std::size_t widest = 0;
  for (int row = 0; row < r.rows; ++row) {
    std::set<int> mine;
    for (int c = 0; c < r.columns; ++c) mine.insert(p.pod(row, c)), ++taken[static_cast<std::size_t>(p.pod(row, c))];
    widest = std::max(widest, mine.size());
    pods.insert(mine.begin(), mine.end());
  }
  for (std::size_t k = 0; k < taken.size(); ++k)
    if (taken[k] > r.free_nodes[k]) return "pod " + std::to_string(k) + " is too full";
  if (widest != static_cast<std::size_t>(p.widest) || pods.size() != static_cast<std::size_t>(p.pods))
    return "wrong numbers";
  return "";
}

struct place_draws {
  hd::counter_random random;
  std::uint64_t next = 0;
  int operator()(int least, int most) {
    return least + static_cast<int>(random.integer(next++) % static_cast<std::uint64_t>(most - least + 1));
  }
};

// Up to `pods` pods, whose free nodes are what the job needs and up to half as much again.
group_request drawn_request(place_draws& draw, int pods, int rows, int columns) {
  group_request r{{}, draw(1, rows), draw(1, columns)};
  const int needed = r.rows * r.columns;
  r.free_nodes.assign(static_cast<std::size_t>(draw(1, pods)), 0);
  for (int n = needed + draw(0, needed / 2 + 1); n > 0;) {
    const int some = std::min(n, draw(1, r.columns + 1));
    r.free_nodes[static_cast<std::size_t>(draw(0, static_cast<int>(r.free_nodes.size()) - 1))] += some;
    n -= some;
  }
  return r;
}

std::pair<int, int> numbers_of(const group_placement& p) {
  return {p.pods, p.widest};
}

}  // namespace

TEST_CASE("groups are placed as well as by brute force", "[plan][place]") {
  INFO("seed " << seed_of_placements);
  place_draws draw{hd::counter_random(seed_of_placements, 0)};
  int different = 0, several = 0;
  std::string wrong;
  for (int round = 0; round < 3000; ++round) {
    const group_request r = drawn_request(draw, 4, 6, 6);
    const group_placements placed = place_groups(r);
    const std::vector<int> fewest = fewest_pods(r);
    several += placed.choices.size() > 1;
    for (const group_placement& p : placed.choices) {
      if (wrong.empty()) wrong = faults(p, r);
      different += !p.optimal();
    }
    for (const double alpha : {0.0, 0.3, 0.5, 1.0}) {
      double best = 1e9;
      for (std::size_t t = 0; t < fewest.size(); ++t)
        if (fewest[t] < 1000) best = std::min(best, alpha * fewest[t] + (1 - alpha) * static_cast<double>(t + 1));
      different += std::abs(best - objective(placed.best(alpha), alpha)) > 1e-12;
    }
  }
  CHECK(different == 0);
  CHECK(wrong == "");
  CHECK(several > 50);
}

TEST_CASE("groups are placed as well as by an integer program", "[plan][place]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/placement_golden.txt");
  int cases = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    std::istringstream words(line);
    double alpha = 0, best = 0;
    group_request r;
    words >> alpha >> best >> r.rows >> r.columns;
    for (int n = 0; words >> n;) r.free_nodes.push_back(n);
    INFO(line);
    const group_placements placed = place_groups(r);
    CHECK(objective(placed.best(alpha), alpha) == Approx(best).margin(1e-5));
    CHECK(faults(placed.best(alpha), r) == "");
  }
  CHECK(cases == 20);
}

TEST_CASE("the published shapes of jobs are placed", "[plan][place]") {
  using numbers = std::pair<int, int>;
  const auto six = place_groups({{5, 6, 7}, 6, 2});
  CHECK(numbers_of(six.best(0)) == numbers{2, 1});
  CHECK(six.choices.size() == 1);
  const group_request even{{13, 13, 13, 13}, 4, 8};
  CHECK(numbers_of(place_groups(even).best(0.3)) == numbers{4, 1});
  CHECK(objective(place_groups(even).best(0.5), 0.5) == 2.5);
  CHECK(place_groups(even).choices.size() == 2);
  const auto uneven = place_groups({{20, 12, 12, 8}, 4, 8});
  CHECK(numbers_of(uneven.best(0)) == numbers{3, 1});
  CHECK(objective(uneven.best(0.5), 0.5) == 2);
  CHECK(numbers_of(uneven.best(1)) == numbers{2, 2});
  // Whole groups first would put the third in three pods.
  CHECK(numbers_of(place_groups({{4, 4, 1}, 3, 3}).best(0.5)) == numbers{3, 2});
  for (const double alpha : {0.0, 0.3, 0.5, 1.0})
    CHECK(numbers_of(place_groups({std::vector<int>(6, 9), 4, 8}).best(alpha)) == numbers{4, 1});
}

TEST_CASE("placements of the paper's shapes are never worse than best fit, and sometimes much better",
          "[plan][place]") {
  INFO("seed " << seed_of_placements);
  place_draws draw{hd::counter_random(seed_of_placements, 4)};
  // Pods and nodes of the cluster, rows and columns of the job: its settings (ii) and (iii), with free nodes at random.
  const struct {
    int pods, nodes, rows, columns;
  } settings[]{{5, 438, 12, 8}, {11, 1019, 46, 8}};
  int worse = 0, all = 0;
  double greatest = 1;
  for (const auto& of : settings)
    for (int round = 0; round < 50; ++round) {
      group_request r{{}, of.rows, of.columns};
      int free = 0;
      for (int k = 0; k < of.pods; ++k) free += r.free_nodes.emplace_back(draw(0, of.nodes / of.pods));
      if (free < of.rows * of.columns) continue;
      // Best fit: each group to the fullest pod that holds it, else to the emptiest ones.
      group_placement fit;
      std::vector<int> left = r.free_nodes;
      std::set<int> used;
      for (int row = 0; row < of.rows; ++row) {
        std::set<int> mine;
        for (int need = of.columns; need > 0;) {
          int best = -1;
          for (int k = 0; k < of.pods; ++k) {
            const int here = left[static_cast<std::size_t>(k)];
            const bool holds = here >= need, held = best >= 0 && left[static_cast<std::size_t>(best)] >= need;
            if (here > 0 && (best < 0 || (holds && !held) ||
                             (holds == held && (here < left[static_cast<std::size_t>(best)]) == holds)))
              best = k;
          }
          const int some = std::min(need, left[static_cast<std::size_t>(best)]);
          left[static_cast<std::size_t>(best)] -= some;
          need -= some;
          mine.insert(best);
        }
        fit.widest = std::max(fit.widest, static_cast<int>(mine.size()));
        used.insert(mine.begin(), mine.end());
      }
      fit.pods = static_cast<int>(used.size());
      const double ours = objective(place_groups(r).best(0.3), 0.3);
      worse += ours > objective(fit, 0.3);
      greatest = std::max(greatest, objective(fit, 0.3) / ours);
      ++all;
    }
  CAPTURE(greatest);
  CHECK(all > 50);
  CHECK(worse == 0);
  CHECK(greatest >= 1.2);
}

TEST_CASE("more free nodes never make a placement worse, and other names of pods change nothing", "[plan][place]") {
  INFO("seed " << seed_of_placements);
  place_draws draw{hd::counter_random(seed_of_placements, 1)};
  int worse = 0, other = 0;
  for (int round = 0; round < 200; ++round) {
    group_request r = drawn_request(draw, 7, 8, 8);
    const group_placements before = place_groups(r);
    std::vector<int> turned = r.free_nodes;
    std::rotate(turned.begin(), turned.begin() + draw(0, static_cast<int>(turned.size()) - 1), turned.end());
    const group_placements renamed = place_groups({turned, r.rows, r.columns});
    r.free_nodes[static_cast<std::size_t>(draw(0, static_cast<int>(r.free_nodes.size()) - 1))] += draw(1, 5);
    const group_placements after = place_groups(r);
    for (const double alpha : {0.0, 0.3, 0.5, 1.0}) {
      worse += objective(after.best(alpha), alpha) > objective(before.best(alpha), alpha) + 1e-12;
      other += numbers_of(renamed.best(alpha)) != numbers_of(before.best(alpha));
    }
    for (std::size_t k = 1; k < before.choices.size(); ++k) {  // groups wider, pods fewer
      worse += before.choices[k].widest <= before.choices[k - 1].widest;
      worse += before.choices[k].pods >= before.choices[k - 1].pods;
    }
  }
  CHECK(worse == 0);
  CHECK(other == 0);
}

TEST_CASE("more pods than all sets are tried of", "[plan][place]") {
  INFO("seed " << seed_of_placements);
  place_draws draw{hd::counter_random(seed_of_placements, 2)};
  int optimal = 0, all = 0;
  std::string wrong;
  for (int round = 0; round < 100; ++round) {
    group_request r{{}, draw(10, 30), draw(2, 8)};
    for (int k = draw(15, 30); k > 0; --k) r.free_nodes.push_back(draw(0, 2 * r.columns));
    std::int64_t free = 0;
    for (const int n : r.free_nodes) free += n;
    r.rows = std::min(r.rows, static_cast<int>(free) / r.columns);
    if (r.rows == 0) continue;
    for (const group_placement& p : place_groups(r).choices) {
      if (wrong.empty()) wrong = faults(p, r);
      ++all;
      optimal += p.optimal();
    }
  }
  CHECK(wrong == "");
  CHECK(all > 100);
  CHECK(optimal > all / 2);
  // 40 pods with a node each hold a job of groups of four nodes, each in four pods.
  CHECK(numbers_of(place_groups({std::vector<int>(40, 1), 10, 4}).best(0.5)) == std::pair{40, 4});
}

TEST_CASE("a placement is an order of ranks", "[plan][place]") {
  using hd::dp, hd::pp, hd::tp;
  // Three pods of four nodes of two ranks; the job has three pipelines of three nodes, its mesh two replicas in a node, or tp.
  const hd::topology cluster = hd::topologies::fat_tree(3, 4, 2, {}, {}, {});
  const auto placed = place_groups({{4, 4, 1}, 3, 3});
  const group_placement& best = placed.best(0.5);
  const auto check = [&](const auto& mesh) {
    const std::vector<int> order = best.template order<pp>(mesh, cluster);
    REQUIRE(order.size() == 18);
    CHECK(std::set<int>(order.begin(), order.end()).size() == 18);
    // A rank lies in the pod of its cell; ranks of a cell share a node.
    std::vector<int> seen(3, 0);
    for (int r = 0; r < 18; ++r) {
      const int column = mesh.template coordinate<pp>(r), row = seen[static_cast<std::size_t>(column)]++ / 2;
      CHECK(cluster.place(order[static_cast<std::size_t>(r)]).pod == best.pod(row, column));
    }
  };
  check(hd::mesh<hd::axis<pp, 3>, hd::axis<dp, 3>, hd::axis<tp, 2>>{});
  check(hd::mesh<hd::axis<dp, 6>, hd::axis<pp, 3>>{});
  const hd::topology whole = hd::topologies::fat_tree(2, 4, 2, {}, {}, {});
  const hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 4>, hd::axis<tp, 2>> mesh;
  const auto all = place_groups({{4, 4}, 4, 2});
  const std::vector<int> order = all.best(0).order(mesh, whole);
  CHECK(hd::spread_along<tp>(mesh, whole, hd::cluster_level::node, order).crossing == 0);
  CHECK(hd::spread_along<pp>(mesh, whole, hd::cluster_level::pod, order).crossing == 0);
  CHECK(hd::spread_along<pp>(mesh, whole, hd::cluster_level::pod).crossing == 8);  // as numbered
}

TEST_CASE("bytes per level are what the links of the levels carry", "[plan][place]") {
  using hd::dp, hd::pp, hd::tp;
  const hd::topology cluster = hd::topologies::fat_tree(3, 4, 2, {1e-6, 1}, {1e-6, 1}, {1e-6, 1});
  const hd::mesh<hd::axis<pp, 3>, hd::axis<dp, 3>, hd::axis<tp, 2>> mesh;
  const std::vector<int> order = place_groups({{4, 4, 1}, 3, 3}).best(0.5).order(mesh, cluster);
  const auto check = [&]<class Tag>(Tag, bool around) {
    hd::round_builder sends(hd::comm_operation::broadcast, cluster.ranks(), 0, 1, 1);
    for (int r = 0; r < mesh.size(); ++r) {
      const int n = mesh.group_size<Tag>(), next = mesh.group_index<Tag>(r) + 1;
      if (next == n && !around) continue;
      sends
          .send(0, order[static_cast<std::size_t>(r)],
                order[static_cast<std::size_t>(mesh.group_member<Tag>(r, next % n))])
          .block(0);
    }
    const hd::round_table rounds = sends.take();
    const hd::load_map loads(rounds, cluster, 1000, 1, hd::routing::single);
    // By the links: a card's out vertex carries what leaves its node, a link to the core switch what leaves its pod.
    double between_nodes = 0, between_pods = 0;
    std::vector<int> degree(static_cast<std::size_t>(cluster.vertices()), 0);
    for (const hd::link& l : cluster.links()) ++degree[static_cast<std::size_t>(l.to)];
    for (std::size_t l = 0; l < cluster.links().size(); ++l) {
      const hd::link& k = cluster.links()[l];
      using vertex = hd::vertex_kind;
      if (cluster.kind(k.from) == vertex::nic && cluster.kind(k.to) == vertex::network_switch)
        between_nodes += loads.bytes(0, static_cast<int>(l));
      if (cluster.kind(k.from) == vertex::network_switch && cluster.kind(k.to) == vertex::network_switch)
        between_pods += loads.bytes(0, static_cast<int>(l)) / 2;  // up and down
    }
    const hd::plan::level_bytes sent = hd::plan::bytes_along<Tag>(mesh, cluster, order, 1000, around);
    CHECK(sent.between_pods == between_pods);
    CHECK(sent.in_pod + sent.between_pods == between_nodes);
    CHECK(sent.all() == 1000.0 * static_cast<double>(rounds.transfers.size()));
  };
  check(pp{}, false);
  check(dp{}, true);
  check(tp{}, true);
  CHECK_THROWS_WITH(hd::plan::bytes_along<pp>(mesh, cluster, std::vector<int>{1}, 1, false),
                    Contains("an order of 1 ranks does not place a mesh of 18"));
}

TEST_CASE("a placement's picture has a box for each free node", "[plan][place]") {
  const std::vector<int> free_nodes{4, 4, 3};
  const auto placed = place_groups({free_nodes, 3, 3});
  const std::vector<hd::plan::axis_bytes> axes{{"pp", {0, 2e9, 1e9}}, {"dp", {0, 0, 0}}};
  const std::string svg = hd::plan::placement_svg(placed.best(0.5), free_nodes, axes, "a <job>");
  CHECK(svg_test::well_formed(svg));
  CHECK(svg_test::count(svg, "rx=\"3\"") == 11);
  for (const char* text : {">2.2<", ">pod 2<", ">pp between pods<", ">2.000 GB<", "a &lt;job&gt;"})
    CHECK(svg_test::count(svg, text) == 1);
  CHECK_THROWS_WITH(hd::plan::placement_svg(placed.best(0.5), std::vector<int>{1, 1, 1}, axes),
                    Contains("fewer than are placed on it"));
}

TEST_CASE("requests that cannot be met name both numbers", "[plan][place]") {
  CHECK_THROWS_WITH(place_groups({{4, 4}, 3, 3}), Contains("needs 9 nodes (3 groups of 3), and the pods have 8 free"));
  CHECK_THROWS_WITH(place_groups({{4, -1}, 1, 1}), Contains("pod 1 cannot have -1 free nodes"));
  CHECK_THROWS_WITH(place_groups({{}, 1, 1}), Contains("needs 1 nodes"));
  CHECK_THROWS_WITH(place_groups({{4}, 0, 2}), Contains("not 0 groups of 2"));
  const auto placed = place_groups({{4, 4}, 4, 2});
  CHECK_THROWS_AS(placed.best(1.5), hd::config_error);
  const hd::topology small = hd::topologies::fat_tree(2, 3, 2, {}, {}, {});
  using hd::dp, hd::pp;
  CHECK_THROWS_WITH((placed.best(0).order(hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 8>>{}, small)),
                    Contains("pod 0 of the cluster has 3 nodes of 2 ranks"));
  CHECK_THROWS_WITH((placed.best(0).order(hd::mesh<hd::axis<pp, 4>, hd::axis<dp, 4>>{}, small)),
                    Contains("4 groups of 2 nodes do not hold a mesh of 16 ranks whose groups are 4 long"));
}

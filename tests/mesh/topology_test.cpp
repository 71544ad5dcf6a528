#include <heddle/mesh/topologies.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace hd = heddle;
using hd::link_class;
using hd::link_kind;
using hd::routing;
using hd::topology;

namespace {

// All ways with the fewest links and the widest narrowest link, found by trying every way: link number -> share.
struct all_ways {
  const topology& t;
  int to;
  int shortest = 1 << 20;
  double widest = 0;
  std::vector<std::vector<int>> ways{};
  std::vector<int> way{};

  void walk(int at, double width) {
    const int hops = static_cast<int>(way.size());
    if (at == to) {
      if (hops < shortest || (hops == shortest && width > widest)) ways.clear(), shortest = hops, widest = width;
      if (hops == shortest && width == widest) ways.push_back(way);
      return;
    }
    if (hops >= shortest || hops > 7) return;
    if (hops > 0 && at < t.ranks() && !t.ranks_forward()) return;
    for (std::size_t l = 0; l < t.links().size(); ++l) {
      if (t.links()[l].from != at) continue;
      way.push_back(static_cast<int>(l));
      walk(t.links()[l].to, std::min(width, t.links()[l].bytes_per_second));
      way.pop_back();
    }
  }
};

int torus_distance(int a, int b, int extent) {
  const int d = std::abs(a - b);
  return std::min(d, extent - d);
}

}  // namespace

TEST_CASE("ways are found in constant expressions", "[mesh][topology]") {
  STATIC_REQUIRE(hd::topologies::ring(8).route(0, 3).hops == 3);
  STATIC_REQUIRE(hd::topologies::ring(8).route(1, 5, routing::split).size() == 8);
  STATIC_REQUIRE(hd::topologies::ring(8).route(1, 5, routing::split)[0].share == 0.5);
  STATIC_REQUIRE(hd::topologies::torus({4, 8}).hops(0, 2 * 8 + 4) == 6);
  STATIC_REQUIRE(hd::topologies::full(5).hops(4, 0) == 1);
}

TEST_CASE("the usual topologies have the distances of their definitions", "[mesh][topology]") {
  const topology torus = hd::topologies::torus({3, 4, 5}), grid = hd::topologies::grid({3, 4, 5});
  CHECK(torus.links().size() == 60 * 6);
  CHECK(grid.links().size() == 2 * (2 * 20 + 3 * 15 + 4 * 12));
  const topology cube = hd::topologies::hypercube(5), star = hd::topologies::star(6, {4, 10, link_kind::nvlink});
  int wrong = 0;
  for (int a = 0; a < 60; ++a)
    for (int b = 0; b < 60; ++b) {
      const int x = a / 20, y = a / 5 % 4, z = a % 5, u = b / 20, v = b / 5 % 4, w = b % 5;
      wrong += torus.hops(a, b) != torus_distance(x, u, 3) + torus_distance(y, v, 4) + torus_distance(z, w, 5);
      wrong += grid.hops(a, b) != std::abs(x - u) + std::abs(y - v) + std::abs(z - w);
    }
  for (int a = 0; a < 32; ++a)
    for (int b = 0; b < 32; ++b)
      wrong += cube.hops_to(b)[static_cast<std::size_t>(a)] != __builtin_popcount(static_cast<unsigned>(a ^ b));
  for (int a = 0; a < 32; ++a)
    for (int b = 0; b < 32; ++b) wrong += cube.hops(a, b) != __builtin_popcount(static_cast<unsigned>(a ^ b));
  CHECK(wrong == 0);
  CHECK(cube.links().size() == 32 * 5);
  CHECK(star.route(1, 5).hops == 2);
  CHECK(star.route(1, 5).seconds == 4);
  CHECK(star.route(1, 5).bytes_per_second == 10);
  CHECK(hd::topologies::ring(1).links().empty());
  CHECK(hd::topologies::ring(2).links().size() == 2);
  CHECK(hd::topologies::ring(3).links().size() == 6);
}

TEST_CASE("an equally long way goes up, or half each way", "[mesh][topology]") {
  const topology ring = hd::topologies::ring(8);
  for (int r = 0; r < 8; ++r) {
    const hd::route_table up = ring.route(r, (r + 4) % 8);
    for (std::size_t k = 0; k < 4; ++k) {
      const hd::link& l = ring.links()[static_cast<std::size_t>(up[k].link)];
      CHECK(l.from == (r + static_cast<int>(k)) % 8);
      CHECK(l.to == (l.from + 1) % 8);
    }
  }
  // Messages at distance d < n/2 both ways load each link with d of them; at n/2 with halves, n/4.
  for (int d = 1; d <= 4; ++d) {
    std::map<int, double> load;
    for (int r = 0; r < 8; ++r)
      for (const hd::route_step& s : ring.route(r, (r + d) % 8, routing::split)) load[s.link] += s.share;
    double most = 0;
    for (const auto& [l, x] : load) most = std::max(most, x);
    CHECK(most == (d < 4 ? d : 2));
  }
}

TEST_CASE("routes equal those found by trying every way", "[mesh][topology][random]") {
  const unsigned seed = 20261121;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int compared = 0, unreachable = 0, wrong = 0, split = 0;
  for (int k = 0; k < 100; ++k) {
    topology t(3 + below(3));
    for (int i = below(4); i > 0; --i) t.add_vertex();
    t.ranks_forward(k % 2 == 0);
    for (int i = t.vertices() * (2 + below(2)); i > 0; --i) {
      const int a = below(t.vertices()), b = below(t.vertices());
      if (a != b) t.add_link({a, b, 1.0 * below(3), 1.0 + below(2), link_kind::other});
    }
    for (int a = 0; a < t.vertices(); ++a)
      for (int b = 0; b < t.vertices(); ++b) {
        if (a == b) continue;
        all_ways oracle{t, b};
        oracle.walk(a, 1e300);
        if (oracle.ways.empty()) {
          ++unreachable;
          CHECK_THROWS_AS(t.route(a, b), hd::mesh_error);
          continue;
        }
        ++compared;
        split += oracle.ways.size() > 1;
        const hd::route_table one = t.route(a, b), all = t.route(a, b, routing::split);
        std::vector<int> links;
        for (const hd::route_step& s : one) links.push_back(s.link);
        // The oracle tries links in the order of their numbers: its first way is the first.
        wrong += links != oracle.ways.front() || one.bytes_per_second != oracle.widest || one.hops != oracle.shortest;
        std::map<int, double> shares;
        double slowest = 0;
        for (const std::vector<int>& way : oracle.ways) {
          double seconds = 0;
          for (const int l : way) {
            shares[l] += 1.0 / static_cast<double>(oracle.ways.size());
            seconds += t.links()[static_cast<std::size_t>(l)].seconds;
          }
          slowest = std::max(slowest, seconds);
        }
        wrong += shares.size() != all.size() || std::abs(slowest - all.seconds) > 1e-12;
        for (const hd::route_step& s : all) wrong += std::abs(shares[s.link] - s.share) > 1e-12;
      }
  }
  CHECK(wrong == 0);
  CHECK(compared > 1000);
  CHECK(unreachable > 10);
  CHECK(split > 100);
}

TEST_CASE("nodes and fat trees say where their ranks are and how far apart", "[mesh][topology]") {
  const link_class nvlink{1, 400, link_kind::nvlink}, ib{10, 50, link_kind::infiniband},
      core{100, 80, link_kind::optical};
  const topology nodes = hd::topologies::nodes(3, 4, nvlink, ib, 2);
  CHECK(nodes.ranks() == 12);
  CHECK(nodes.route(0, 3).seconds == 1);
  CHECK(nodes.route(0, 3, routing::split).size() == 2);  // not through the cards
  CHECK(nodes.route(0, 3).bytes_per_second == 400);
  CHECK(nodes.route(0, 11).seconds == 10);
  CHECK(nodes.route(0, 11).bytes_per_second == 50);
  CHECK(nodes.route(0, 11, routing::split).size() == 4);
  CHECK(nodes.place(7) == hd::rank_place{7, 1, 1, 0, link_kind::infiniband});
  CHECK(nodes.parts(hd::cluster_level::node) == 3);
  CHECK(nodes.parts(hd::cluster_level::rail) == 2);
  CHECK(nodes.part(hd::cluster_level::rank, 5) == 5);
  // Ranks 0 and 1 share a card, 0 and 2 do not.
  CHECK(nodes.route(0, 4)[1].link == nodes.route(1, 8)[1].link);
  CHECK(nodes.route(0, 4)[1].link != nodes.route(2, 8)[1].link);

  const topology tree = hd::topologies::fat_tree(2, 3, 4, nvlink, ib, core, 4);
  CHECK(tree.ranks() == 24);
  CHECK(tree.parts(hd::cluster_level::pod) == 2);
  CHECK(tree.route(0, 4).hops == 4);  // same rail, same pod
  CHECK(tree.route(0, 5).hops == 6);  // another rail: over the spine
  CHECK(tree.route(0, 5).seconds == 10);
  CHECK(tree.route(0, 12).seconds == 110);  // another pod
  CHECK(tree.route(0, 12).bytes_per_second == 50);
  const topology one_rail = hd::topologies::fat_tree(2, 3, 4, nvlink, ib, core);
  CHECK(one_rail.route(0, 23).hops == 6);
  CHECK(one_rail.route(0, 23).seconds == 110);
  int unreachable = 0;
  for (int a = 0; a < 24; ++a)
    for (int b = 0; b < 24; ++b) unreachable += a != b && tree.hops(a, b) < 2;
  CHECK(unreachable == 0);
}

TEST_CASE("renumbering moves ranks and keeps the cluster", "[mesh][topology]") {
  const topology t = hd::topologies::nodes(2, 2, {1, 8}, {2, 4, link_kind::roce});
  const std::vector<int> order{2, 0, 3, 1};
  const topology u = t.renumbered(order);
  for (int a = 0; a < 4; ++a) {
    CHECK(u.place(a) == t.place(order[static_cast<std::size_t>(a)]));
    for (int b = 0; b < 4; ++b) {
      const int x = order[static_cast<std::size_t>(a)], y = order[static_cast<std::size_t>(b)];
      CHECK(u.hops(a, b) == t.hops(x, y));
      CHECK(u.route(a, b).seconds == t.route(x, y).seconds);
    }
  }
  const std::vector<int> back{1, 3, 0, 2}, twice{0, 0, 1, 2}, few{0, 1};
  CHECK(u.renumbered(back) == t);
  CHECK_THROWS_WITH(t.renumbered(twice), Catch::Matchers::Contains("rank 0 twice"));
  CHECK_THROWS_AS(t.renumbered(few), hd::mesh_error);
}

TEST_CASE("what is no topology is refused", "[mesh][topology][error]") {
  using Catch::Matchers::Contains;
  topology t(2);
  CHECK_THROWS_WITH(t.add_link({0, 2, 0, 1, link_kind::other}), Contains("no vertex 2; it has 2"));
  CHECK_THROWS_WITH(t.add_link({1, 1, 0, 1, link_kind::other}), Contains("vertex 1 to itself"));
  CHECK_THROWS_WITH(t.add_link({0, 1, -1, 1, link_kind::other}), Contains("at least 0 seconds"));
  CHECK_THROWS_WITH(t.add_link({0, 1, std::numeric_limits<double>::infinity(), 1, link_kind::other}),
                    Contains("a finite latency"));
  CHECK_THROWS_WITH(t.add_link({0, 1, 0, 0, link_kind::other}), Contains("above 0 bytes per second"));
  CHECK_THROWS_WITH(t.add_link({0, 1, 0, std::nan(""), link_kind::other}), Contains("from vertex 0 to vertex 1"));
  CHECK_THROWS_WITH(t.route(0, 1), Contains("no links lead from vertex 0 to vertex 1"));
  CHECK_THROWS_WITH(t.place(2), Contains("no rank 2; it has 2"));
  CHECK_THROWS_AS(t.add_vertex(hd::vertex_kind::rank), hd::mesh_error);
  CHECK_THROWS_AS(topology(-1), hd::mesh_error);
  CHECK_THROWS_WITH(hd::topologies::torus({4, 0}), Contains("got 0") && Contains("rank along each dimension"));
  CHECK_THROWS_WITH(hd::topologies::nodes(2, 2, {}, {}, 3), Contains("at most one network card per rank, got 3"));
  CHECK_THROWS_AS(hd::topologies::hypercube(-1), hd::mesh_error);
  CHECK_THROWS_WITH(hd::topologies::torus({65536, 65536}), Contains("too many ranks"));
  CHECK_THROWS_WITH(hd::topologies::nodes(1 << 20, 1 << 12, {}, {}), Contains("too many ranks"));
  CHECK(t.route(1, 1).empty());
}

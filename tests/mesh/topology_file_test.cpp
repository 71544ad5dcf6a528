#include <heddle/mesh/simgrid.hpp>
#include <heddle/mesh/topologies.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <random>
#include <string>

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::topology;

namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a topology's text reads back as the same topology", "[mesh][topology]") {
  const hd::link_class nvlink{1.0 / 3e6, 4.5e11, hd::link_kind::nvlink}, ib{5e-6, 5e10 / 3, hd::link_kind::infiniband};
  for (const topology& t :
       {topology(), topology(3), hd::topologies::torus({4, 3, 2}, nvlink), hd::topologies::nodes(3, 4, nvlink, ib, 2),
        hd::topologies::fat_tree(2, 2, 4, nvlink, ib, {1e-5, 1e11, hd::link_kind::optical}, 4)})
    CHECK(hd::parse_topology(to_text(t)) == t);

  const unsigned seed = 20261122;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int wrong = 0;
  for (int k = 0; k < 200; ++k) {
    topology t(1 + below(9));
    for (int i = below(5); i > 0; --i) t.add_vertex(static_cast<hd::vertex_kind>(1 + below(3)));
    t.ranks_forward(below(2) == 0);
    for (int r = 0; r < t.ranks(); ++r)
      t.place(r, {below(9), below(9), below(9), below(9), static_cast<hd::link_kind>(below(8))});
    for (int i = below(30); i > 0; --i) {
      const int a = below(t.vertices()), b = below(t.vertices());
      const hd::link_class c{std::ldexp(static_cast<double>(random()), -below(200)),
                             std::ldexp(1.0 + static_cast<double>(random()), below(90) - 60),
                             static_cast<hd::link_kind>(below(8))};
      if (a != b && below(2) == 0)
        t.add_both(a, b, c);
      else if (a != b)
        t.add_link(a, b, c);
    }
    wrong += hd::parse_topology(to_text(t)) != t;
  }
  CHECK(wrong == 0);

  topology limitless(2);
  limitless.add_link({0, 1, 0, std::numeric_limits<double>::infinity(), hd::link_kind::memory});
  CHECK(hd::parse_topology(to_text(limitless)) == limitless);
}

TEST_CASE("a topology written by hand is read, comments and all", "[mesh][topology]") {
  const topology t = hd::parse_topology(
      "# two machines\nheddle topology 1\r\n\nranks 2  # one each\nvertex 2 switch\n"
      "both 0 2 seconds 1e-6 bytes_per_second 1e9 ethernet\nboth 2 1 seconds 1e-6 bytes_per_second 1e9 ethernet");
  CHECK(t.ranks() == 2);
  CHECK(t.links().size() == 4);
  CHECK(t.route(1, 0).seconds == 2e-6);
  CHECK(t.place(1).node == 1);
}

TEST_CASE("a text that is no topology is refused by line", "[mesh][topology][error]") {
  const auto parse = [](const char* text) { return hd::parse_topology(text, "a.txt"); };
  CHECK_THROWS_WITH(parse(""), Contains("heddle topology 1"));
  CHECK_THROWS_WITH(parse("ranks 2"), Contains("heddle: a.txt, line 1: ") && Contains("heddle topology 1"));
  CHECK_THROWS_WITH(parse("heddle topology 2"), Contains("line 1"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nrank 2"), Contains("line 3: \"rank\" is none of"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nranks 2"), Contains("line 3") && Contains("twice"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2000000000"),
                    Contains("line 2: 2000000000 ranks are too many: a topology's text has at most 1048576"));
  CHECK(parse("heddle topology 1\nranks 1048576").ranks() == 1048576);
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks two"), Contains("\"two\" is no whole number"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nvertex 3 switch"), Contains("the next vertex is number 2"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nvertex 2 hub"), Contains("known are rank nic switch cpu"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nlink 0 1 1e-6 1e9"), Contains("expected link|both"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nlink 0 1 seconds 1us bytes_per_second 1 pcie"),
                    Contains("\"1us\" is no number"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nlink 0 1 seconds 1 bytes_per_second 1 wire"),
                    Contains("known are memory"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\nforward ranks maybe"), Contains("yes|no"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nforward ranks no\nranks 2"), Contains("line 2: the number of ranks"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nvertex 0 switch\nranks 2"), Contains("line 2: the number of ranks"));
  CHECK_THROWS_WITH(parse("heddle topology 1\n# nothing"), Contains("the number of ranks is missing"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 1\nplace 0 node 0 gpu 0 rail 0 pod 0 nic pcie"),
                    Contains("gpu <n> node <n>"));
  CHECK_THROWS_WITH(parse("heddle topology 1\nranks 2\n\nlink 0 5 seconds 1 bytes_per_second 1 pcie"),
                    Contains("heddle: a.txt, line 4: a topology has no vertex 5; it has 2"));
}

TEST_CASE("a topology is saved and loaded", "[mesh][topology]") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("heddle_topology_" + std::to_string(std::random_device{}()))).string();
  const topology t = hd::topologies::hypercube(6);
  hd::save_topology(t, path);
  CHECK(hd::load_topology(path) == t);
  std::remove(path.c_str());
  CHECK_THROWS_AS(hd::load_topology(path), hd::io_error);
  CHECK_THROWS_AS(hd::save_topology(t, path + "/no/such/folder"), hd::io_error);
}

TEST_CASE("a SimGrid platform has the hosts, links and ways of the topology", "[mesh][topology]") {
  const topology t =
      hd::topologies::nodes(2, 2, {1e-6, 1e11, hd::link_kind::nvlink}, {1e-5, 1e10, hd::link_kind::ethernet});
  const std::string xml = hd::simgrid_platform(t, 1e11, hd::simgrid_ways::pairs);
  CHECK(count(xml, "<host ") == 4);
  CHECK(count(xml, "<link ") == t.links().size());
  CHECK(count(xml, "<route ") == 12);
  std::size_t steps = 0;
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < 4; ++b) steps += t.route(a, b).size();
  CHECK(count(xml, "<link_ctn ") == steps);
  std::string way = "<route src=\"rank-0\" dst=\"rank-3\" symmetrical=\"NO\">";
  for (const hd::route_step& s : t.route(0, 3)) way += "<link_ctn id=\"link-" + std::to_string(s.link) + "\"/>";
  CHECK_THAT(xml, Contains(way));
  const std::string limitless = hd::simgrid_platform(
      hd::topologies::ring(3, {1e-6, std::numeric_limits<double>::infinity(), hd::link_kind::other}));
  CHECK(count(limitless, "bandwidth=\"1e+18Bps\"") == 6);
  CHECK(hd::simgrid_hostfile(t) == "rank-0\nrank-1\nrank-2\nrank-3\n");
}

TEST_CASE("a SimGrid platform has a route per link where no shortest way passes a rank", "[mesh][topology]") {
  const hd::link_class inside{1e-6, 1e11, hd::link_kind::nvlink}, between{1e-5, 1e10, hd::link_kind::ethernet};
  const auto per_link = [](const topology& t) {
    const std::string xml = hd::simgrid_platform(t);
    const bool links = count(xml, "<route ") == t.links().size() && count(xml, "DijkstraCache") == 1 &&
                       count(xml, "<router ") == static_cast<std::size_t>(t.vertices() - t.ranks());
    const bool pairs = count(xml, "<route ") == static_cast<std::size_t>(t.ranks() * (t.ranks() - 1)) &&
                       count(xml, "routing=\"Full\"") == 1 &&
                       xml == hd::simgrid_platform(t, 1e11, hd::simgrid_ways::pairs);
    CHECK(links != pairs);
    return links;
  };
  CHECK(per_link(hd::topologies::star(9, between)));
  CHECK(per_link(hd::topologies::nodes(4, 8, inside, between)));
  CHECK(per_link(hd::topologies::fat_tree(2, 4, 8, inside, between, between)));
  CHECK(per_link(hd::topologies::fat_tree(2, 4, 1, inside, between, between)));
  // By the card of a neighbour it is as far; through ranks; two links side by side.
  CHECK_FALSE(per_link(hd::topologies::fat_tree(2, 4, 8, inside, between, between, 8)));
  CHECK_FALSE(per_link(hd::topologies::ring(5, between)));
  topology twice = hd::topologies::star(3, between);
  twice.add_both(0, 3, inside);
  CHECK_FALSE(per_link(twice));
  CHECK_THROWS_AS(hd::simgrid_platform(topology(2)), hd::mesh_error);
  // A line of ranks that do not forward, but SimGrid's hosts would.
  topology line = hd::topologies::grid({3}, between);
  line.add_both(0, line.add_vertex(), between);
  line.add_both(2, line.vertices() - 1, between);
  line.ranks_forward(false);
  line.add_both(1, line.vertices() - 1, between);
  CHECK_FALSE(per_link(line));
}

// tests/mesh/link_table_test.cpp: links of pairs of nodes, the two directions apart.
#include "catch.hpp"

#include <heddle/mesh/link_table.hpp>

namespace hd = heddle;

namespace {
constexpr double one_message() {
  hd::link_table t(3);
  t.set(0, 1, {0.5, 100});
  return t.seconds(1, 0, 50, 0.25);
}
}  // namespace

TEST_CASE("a message takes latency, bytes over bandwidth and an overhead", "[mesh][links]") {
  STATIC_REQUIRE(one_message() == 0.5 + 0.5 + 0.25);
  hd::link_table t(3);
  t.set(0, 1, {0.5, 100});
  t.set_one_way(1, 2, {0.125, 10});
  CHECK(t.seconds(2, 2, 1e9, 1) == 0);
  CHECK(t.seconds(1, 2, 10) == 1.125);
  CHECK(t.seconds(2, 1, 10) == 10);  // as a table begins: no latency, one byte per second
  const auto all = t.all_seconds(10, 1);
  REQUIRE(all.size() == 9);
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) CHECK(all[static_cast<std::size_t>(3 * a + b)] == t.seconds(a, b, 10, 1));
}

TEST_CASE("nodes of one place are joined by its inside link", "[mesh][links]") {
  hd::link_table places(2);
  places.set_one_way(0, 1, {1, 10});
  places.set_one_way(1, 0, {2, 10});
  const hd::link_table t = hd::nodes_at(places, {0, 1, 0}, {0.25, 40});
  CHECK(t.nodes() == 3);
  CHECK(t.seconds(0, 2, 40) == 1.25);
  CHECK(t.seconds(2, 1, 40) == 5);
  CHECK(t.seconds(1, 2, 40) == 6);
}

TEST_CASE("link tables refuse what no link can be", "[mesh][links]") {
  CHECK_THROWS_AS(hd::link_table(0), hd::mesh_error);
  hd::link_table t(2);
  CHECK_THROWS_AS(t.set(0, 2, {0, 1}), hd::mesh_error);
  CHECK_THROWS_AS(t.set(0, 1, {-1, 1}), hd::mesh_error);
  CHECK_THROWS_AS(t.set(0, 1, {0, 0}), hd::mesh_error);
  CHECK_THROWS_WITH(t(0, 5), "heddle: a link table of 2 nodes has no link from 0 to 5");
  CHECK_THROWS_AS(hd::nodes_at(t, {0, 3}, {0, 1}), hd::mesh_error);
  CHECK_THROWS_AS(hd::nodes_at(t, {3}, {0, 1}), hd::mesh_error);
}

#include <heddle/mesh/mesh.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <type_traits>
#include <vector>

using heddle::axis;
using heddle::cp;
using heddle::dp;
using heddle::mesh;
using heddle::pp;
using heddle::tp;

namespace {

using fixed = mesh<axis<dp, 2>, axis<pp, 3>, axis<tp, 4>>;
using mixed = mesh<axis<dp>, axis<pp, 3>, axis<tp>>;
using open = mesh<axis<dp>, axis<pp>, axis<tp>>;

// The definition, the slow way: all coordinates in nested loops, the last axis innermost.
template <class Mesh>
void check_against_definition(const Mesh& m) {
  const auto [d, p, t] = m.extents();
  CAPTURE(d, p, t);
  REQUIRE(m.size() == d * p * t);
  int rank = 0;
  for (int i = 0; i < d; ++i)
    for (int j = 0; j < p; ++j)
      for (int k = 0; k < t; ++k, ++rank) {
        REQUIRE(m.coordinates(rank) == std::array{i, j, k});
        REQUIRE(m.template coordinate<dp>(rank) == i);
        REQUIRE(m.template coordinate<pp>(rank) == j);
        REQUIRE(m.template coordinate<tp>(rank) == k);
        REQUIRE(m.rank_of({i, j, k}) == rank);
      }
  REQUIRE(rank == m.size());
}

// A group along some axes: the ranks that agree in all other coordinates, ordered by the named ones, major first.
template <class... Tags, class Mesh>
void check_groups(const Mesh& m) {
  const std::array<std::size_t, sizeof...(Tags)> along{Mesh::template position<Tags>...};
  std::map<int, std::set<int>> by_color;
  for (int rank = 0; rank < m.size(); ++rank) {
    CAPTURE(rank);
    const auto mine = m.coordinates(rank);
    std::vector<int> expected;
    for (int other = 0; other < m.size(); ++other) {
      const auto theirs = m.coordinates(other);
      bool same = true;
      for (std::size_t a = 0; a < mine.size(); ++a)
        same = same && (mine[a] == theirs[a] || std::find(along.begin(), along.end(), a) != along.end());
      if (same) expected.push_back(other);
    }
    std::sort(expected.begin(), expected.end(), [&](int a, int b) {
      for (const std::size_t axis_number : along) {
        const int x = m.coordinates(a)[axis_number], y = m.coordinates(b)[axis_number];
        if (x != y) return x < y;
      }
      return false;
    });
    const std::vector<int> members = heddle::group<Tags...>(m, rank);
    REQUIRE(members == expected);
    REQUIRE(static_cast<int>(members.size()) == m.template group_size<Tags...>());
    const int index = m.template group_index<Tags...>(rank);
    REQUIRE(members[static_cast<std::size_t>(index)] == rank);
    by_color[m.template group_color<Tags...>(rank)].insert(rank);
    // One colour per group, and the group's members share it.
    for (const int member : members)
      REQUIRE(m.template group_color<Tags...>(member) == m.template group_color<Tags...>(rank));
  }
  int expected_color = 0;
  for (const auto& [color, ranks] : by_color) {
    CHECK(color == expected_color++);  // colours count from zero without gaps
    CHECK(static_cast<int>(ranks.size()) == m.template group_size<Tags...>());
  }
}

template <class Mesh>
void check_all_groups(const Mesh& m) {
  check_groups<>(m);
  check_groups<dp>(m);
  check_groups<pp>(m);
  check_groups<tp>(m);
  check_groups<dp, tp>(m);
  check_groups<tp, dp>(m);
  check_groups<pp, tp>(m);
  check_groups<dp, pp, tp>(m);
  check_groups<tp, pp, dp>(m);
}

}  // namespace

TEST_CASE("a static mesh is an empty object and everything is a constant", "[mesh][law]") {
  STATIC_REQUIRE(std::is_empty_v<fixed>);
  STATIC_REQUIRE(fixed::is_static);
  STATIC_REQUIRE(fixed::size() == 24);
  STATIC_REQUIRE(fixed::rank == 3);
  STATIC_REQUIRE(fixed::extent<pp>() == 3);
  STATIC_REQUIRE(fixed::extent_or_one<cp>() == 1);
  STATIC_REQUIRE(fixed::stride<tp>() == 1);
  STATIC_REQUIRE(fixed::stride<dp>() == 12);
  STATIC_REQUIRE(fixed::coordinate<tp>(5) == 1);
  STATIC_REQUIRE(fixed::rank_of({1, 2, 3}) == 23);
  STATIC_REQUIRE(fixed::group_member<tp>(5, 3) == 7);
  STATIC_REQUIRE(fixed::has<dp>);
  STATIC_REQUIRE_FALSE(fixed::has<cp>);
  STATIC_REQUIRE(std::is_same_v<fixed::tags_among<cp, tp, dp, cp>, heddle::type_list<tp, dp>>);
  STATIC_REQUIRE(heddle::mesh_like<fixed>);
  STATIC_REQUIRE_FALSE(heddle::mesh_like<axis<dp, 2>>);
}

TEST_CASE("static, mixed and dynamic meshes agree", "[mesh][law]") {
  constexpr mixed m{2, 4};
  constexpr open o{2, 3, 4};
  STATIC_REQUIRE_FALSE(mixed::is_static);
  STATIC_REQUIRE(m.extents() == fixed::extents());
  STATIC_REQUIRE(o.extents() == fixed::extents());
  STATIC_REQUIRE(m.coordinate<pp>(17) == fixed::coordinate<pp>(17));
  STATIC_REQUIRE(o.group_member<tp, dp>(17, 5) == fixed::group_member<tp, dp>(17, 5));
  STATIC_REQUIRE(o == open::from_extents({2, 3, 4}));
  STATIC_REQUIRE_FALSE(o == open{2, 3, 5});
  STATIC_REQUIRE(open{}.size() == 1);
  STATIC_REQUIRE(mixed{}.size() == 3);
  check_against_definition(fixed{});
  check_against_definition(m);
  check_against_definition(o);
  check_all_groups(fixed{});
  check_all_groups(m);
  check_all_groups(o);
}

TEST_CASE("ranks and groups follow their definitions on random meshes", "[mesh][property]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> extent(1, 4);
  for (int i = 0; i < 12; ++i) {
    const int d = extent(random), p = extent(random), t = extent(random);
    check_against_definition(open{d, p, t});
    check_all_groups(open{d, p, t});
    check_all_groups(mixed{d, t});
  }
}

TEST_CASE("a sub-mesh has the named axes in the named order", "[mesh][law]") {
  STATIC_REQUIRE(std::is_same_v<heddle::sub_mesh<fixed, tp, dp>, mesh<axis<tp, 4>, axis<dp, 2>>>);
  STATIC_REQUIRE(std::is_same_v<heddle::sub_mesh<mixed, pp>, mesh<axis<pp, 3>>>);
  STATIC_REQUIRE(heddle::sub_mesh<fixed>::size() == 1);
  constexpr auto sub = mixed{5, 7}.sub<tp, dp>();
  STATIC_REQUIRE(std::is_same_v<decltype(sub), const mesh<axis<tp>, axis<dp>>>);
  STATIC_REQUIRE(sub.extents() == std::array{7, 5});
  // The member at index i of a group has the sub-mesh's coordinates of i.
  constexpr open m{2, 3, 4};
  constexpr auto plane = m.sub<tp, dp>();
  for (int index = 0; index < plane.size(); ++index) {
    const int member = m.group_member<tp, dp>(0, index);
    CHECK(m.coordinate<tp>(member) == plane.coordinate<tp>(index));
    CHECK(m.coordinate<dp>(member) == plane.coordinate<dp>(index));
  }
}

TEST_CASE("a mesh without axes is one rank", "[mesh][law]") {
  STATIC_REQUIRE(mesh<>::size() == 1);
  STATIC_REQUIRE(mesh<>::rank_of({}) == 0);
  CHECK(to_string(mesh<>{}) == "one rank");
}

TEST_CASE("a mesh prints its axes", "[mesh]") {
  CHECK(to_string(fixed{}) == "dp=2 x pp=3 x tp=4");
  CHECK(to_string(mixed{2, 4}) == "dp=2 x pp=3 x tp=4");
}

TEST_CASE("a mesh refuses what does not fit, with the numbers", "[mesh][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS((open{2, 0, 2}), heddle::mesh_error);
  CHECK_THROWS_AS((open{65536, 65536, 2}), heddle::mesh_error);
  CHECK_THROWS_AS((open{4294967297LL, 1, 1}), heddle::mesh_error);
  CHECK_THROWS_AS(open::from_extents({65536, 65536, 2}), heddle::mesh_error);
  CHECK_THROWS_WITH((open{2, 0, 2}), Contains("axis number 1") && Contains("got 0"));
  CHECK_THROWS_WITH(mixed::from_extents({2, 4, 2}), Contains("fixed at 3") && Contains("got 4"));
  CHECK_THROWS_AS(fixed::rank_of({2, 0, 0}), heddle::mesh_error);
  CHECK_THROWS_WITH(fixed::rank_of({0, -1, 0}), Contains("-1") && Contains("[0, 3)"));
  CHECK_NOTHROW(heddle::require_world_size(fixed{}, 24));
  CHECK_THROWS_AS(heddle::require_world_size(fixed{}, 8), heddle::mesh_error);
  CHECK_THROWS_WITH(heddle::require_world_size(open{2, 3, 4}, 8),
                    Contains("heddle: ") && Contains("dp=2 x pp=3 x tp=4") && Contains("24") && Contains("8"));
}

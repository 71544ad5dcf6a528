#include <heddle/mesh/axis_network.hpp>
#include <heddle/mesh/topologies.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::cluster_level;
using hd::dp, hd::pp, hd::tp;
using hd::link_kind;
using hd::topology;

namespace {

using flexible = hd::mesh<hd::axis<pp>, hd::axis<dp>, hd::axis<tp>>;
using replicas_first = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;

// `ranks` ranks, a node each, of which a shuffled half has InfiniBand and the others RoCE cards.
topology two_clusters(int ranks, std::mt19937& random) {
  topology t(ranks);
  std::vector<int> shuffled(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) shuffled[static_cast<std::size_t>(r)] = r;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  for (int i = 0; i < ranks; ++i) {
    const int r = shuffled[static_cast<std::size_t>(i)];
    t.place(r, {r, r, 0, 0, i < ranks / 2 ? link_kind::roce : link_kind::infiniband});
  }
  return t;
}

}  // namespace

TEST_CASE("a pipeline across two clusters leaves tp and dp groups with one kind of card", "[mesh][topology][holmes]") {
  const unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int meshes = 0;
  for (const int ranks : {8, 16})
    for (int stages = 2; stages <= ranks; stages += 2)
      for (int width = 1; width <= ranks; ++width) {
        if (ranks % stages != 0 || ranks / stages % width != 0) continue;
        const flexible mesh(stages, ranks / stages / width, width);
        const topology t = two_clusters(ranks, random);
        const std::vector<int> order = hd::sorted_ranks(t, std::array{link_kind::infiniband, link_kind::roce});
        ++meshes;
        CHECK(hd::network_along<tp>(mesh, t, order).mixed == 0);
        CHECK(hd::network_along<dp>(mesh, t, order).mixed == 0);
        CHECK(hd::network_along<dp, tp>(mesh, t, order).mixed == 0);
        CHECK(hd::network_along<pp>(mesh, t, order).mixed == ranks / stages);
        CHECK(hd::network_along<pp>(mesh, t, order).kind == link_kind::ethernet);
        CHECK_NOTHROW((hd::require_one_kind<dp, tp>(mesh, t, order)));
        // Edges between neighbours along each axis that join the clusters: dp * tp, of the pipeline, at the one cut.
        int crossing[3] = {};
        for (int a = 0; a < ranks; ++a)
          for (int b = 0; b < ranks; ++b) {
            const auto ca = mesh.coordinates(a), cb = mesh.coordinates(b);
            for (std::size_t axis = 0; axis < 3; ++axis) {
              auto next = ca;
              ++next[axis];
              if (next == cb)
                crossing[axis] +=
                    t.place(order[static_cast<std::size_t>(a)]).nic != t.place(order[static_cast<std::size_t>(b)]).nic;
            }
          }
        CHECK(crossing[0] == ranks / stages);
        CHECK(crossing[1] == 0);
        CHECK(crossing[2] == 0);
        // The order: InfiniBand first, ascending in each half.
        CHECK(t.place(order[0]).nic == link_kind::infiniband);
        CHECK(std::is_sorted(order.begin(), order.begin() + ranks / 2));
        CHECK(std::is_sorted(order.begin() + ranks / 2, order.end()));
      }
  CHECK(meshes == 6 + 10);

  // Whole replicas in a cluster: tp and pp keep one kind, dp crosses.
  for (const int ranks : {8, 16}) {
    const replicas_first mesh(2, ranks / 4, 2);
    const topology t = two_clusters(ranks, random);
    const std::vector<int> order = hd::sorted_ranks(t);
    CHECK(hd::network_along<pp, tp>(mesh, t, order).mixed == 0);
    CHECK_FALSE(hd::network_along<pp, tp>(mesh, t, order).same_kind);
    CHECK(hd::network_along<dp>(mesh, t, order).mixed == ranks / 2);
    CHECK_THROWS_WITH(hd::require_one_kind<dp>(mesh, t, order),
                      Contains("one group along dp") && Contains("name the axis"));
  }
}

TEST_CASE("the same answers hold for clusters and meshes that are types", "[mesh][topology][holmes]") {
  using machines = hd::cluster<hd::ranks_with<4, link_kind::infiniband>, hd::ranks_with<4, link_kind::roce>>;
  using pipeline = hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using replicas = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
  STATIC_REQUIRE(hd::require_one_kind<machines, pipeline, tp, dp>());
  STATIC_REQUIRE(hd::one_kind_along<machines, pipeline, dp, tp>);
  STATIC_REQUIRE_FALSE(hd::one_kind_along<machines, pipeline, pp>);
  STATIC_REQUIRE_FALSE(hd::one_kind_along<machines, replicas, dp>);
  STATIC_REQUIRE(std::is_same_v<hd::transport_along<machines, pipeline, tp>, hd::rdma_by_group>);
  STATIC_REQUIRE(std::is_same_v<hd::transport_along<machines, pipeline, pp>, hd::tcp>);
  using one = hd::cluster<hd::ranks_with<8, link_kind::roce>>;
  STATIC_REQUIRE(std::is_same_v<hd::transport_along<one, pipeline, pp>, hd::rdma<link_kind::roce>>);
  using slow = hd::cluster<hd::ranks_with<8, link_kind::ethernet>>;
  STATIC_REQUIRE(std::is_same_v<hd::transport_along<slow, pipeline, tp>, hd::tcp>);
  // Static and run-time forms agree.
  topology t(8);
  for (int r = 0; r < 8; ++r) t.place(r, {r, r / 4, 0, 0, machines::nic(r)});
  CHECK(hd::network_along<tp>(pipeline{}, t) == hd::axis_network{4, 0, 4, false, link_kind::other});
  CHECK(hd::network_along<pp>(pipeline{}, t) == hd::axis_network{4, 4, 0, true, link_kind::ethernet});
}

TEST_CASE("sorted ranks keep the last axes inside nodes and pods", "[mesh][topology]") {
  const unsigned seed = 11;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const topology t =
      hd::topologies::fat_tree(2, 2, 4, {1, 8, link_kind::nvlink}, {2, 4, link_kind::infiniband}, {4, 4});
  std::vector<int> shuffled(16);
  for (int r = 0; r < 16; ++r) shuffled[static_cast<std::size_t>(r)] = r;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  const topology mixed = t.renumbered(shuffled);
  const flexible mesh(2, 2, 4);
  CHECK_THROWS_WITH(hd::require_inside<tp>(mesh, mixed, cluster_level::node),
                    Contains("along tp") && Contains("level node"));
  const std::vector<int> order = hd::sorted_ranks(mixed);
  CHECK(hd::inverse_order(order) == shuffled);  // sorting undoes the shuffling
  CHECK(mixed.renumbered(order) == t);
  CHECK_NOTHROW(hd::require_inside<tp>(mesh, mixed, cluster_level::node, order));
  CHECK_NOTHROW((hd::require_inside<dp, tp>(mesh, mixed, cluster_level::pod, order)));
  CHECK(hd::spread_along<tp>(mesh, mixed, cluster_level::node, order) == hd::group_spread{4, 0, 1});
  CHECK(hd::spread_along<pp>(mesh, mixed, cluster_level::pod, order) == hd::group_spread{8, 8, 2});
  CHECK(hd::spread_along<pp, dp>(mesh, mixed, cluster_level::node, order) == hd::group_spread{4, 4, 4});
}

TEST_CASE("orders that are none are refused", "[mesh][topology][error]") {
  CHECK_THROWS_WITH(hd::inverse_order(std::vector<int>{0, 2}), Contains("no rank 2"));
  CHECK_THROWS_WITH(hd::inverse_order(std::vector<int>{1, 1}), Contains("twice rank 1"));
  topology t(4);
  t.place(3, {3, 3, 0, 0, link_kind::roce});
  CHECK_THROWS_WITH(hd::sorted_ranks(t, std::array{link_kind::other}), Contains("rank 3") && Contains("roce"));
  CHECK_THROWS_WITH(hd::spread_along<tp>(flexible(1, 1, 8), t, cluster_level::node),
                    Contains("8 ranks") && Contains("4 ranks"));
  const std::vector<int> few{0, 1};
  CHECK_THROWS_AS(hd::spread_along<tp>(flexible(1, 1, 4), t, cluster_level::node, few), hd::mesh_error);
  const std::vector<int> twice{0, 0, 1, 1};
  CHECK_THROWS_WITH(hd::spread_along<tp>(flexible(1, 1, 4), t, cluster_level::node, twice), Contains("twice rank 0"));
}

TEST_CASE("different cards do not matter to a group inside one node", "[mesh][topology][holmes]") {
  topology t(4);  // two nodes, a card of each kind in both
  for (int r = 0; r < 4; ++r) t.place(r, {r, r / 2, r % 2, 0, r % 2 == 0 ? link_kind::roce : link_kind::infiniband});
  const flexible mesh(1, 2, 2);
  CHECK(hd::network_along<tp>(mesh, t) == hd::axis_network{2, 0, 2, true, link_kind::other});
  CHECK_NOTHROW(hd::require_one_kind<tp>(mesh, t));
  CHECK(hd::network_along<dp>(mesh, t) == hd::axis_network{2, 0, 0, false, link_kind::other});
  CHECK(hd::network_along<dp, tp>(mesh, t) == hd::axis_network{1, 1, 0, true, link_kind::ethernet});
  CHECK_THROWS_AS((hd::require_one_kind<dp, tp>(mesh, t)), hd::mesh_error);
}

TEST_CASE("a machine is what the type of its cluster says, or is refused", "[mesh][topology][holmes]") {
  using machines = hd::cluster<hd::ranks_with<2, link_kind::infiniband>, hd::ranks_with<2, link_kind::roce>>;
  topology t(4);
  for (int r = 0; r < 4; ++r) t.place(r, {r, r, 0, 0, r % 2 == 0 ? link_kind::roce : link_kind::infiniband});
  CHECK_THROWS_WITH(hd::require_cluster<machines>(t),
                    Contains("rank 0 (physical rank 0)") && Contains("kind roce, where the cluster says infiniband"));
  CHECK_NOTHROW(hd::require_cluster<machines>(t, hd::sorted_ranks(t)));
  CHECK_THROWS_WITH(hd::require_cluster<machines>(t, std::vector<int>{1, 3, 2, 2}), Contains("twice rank 2"));
  CHECK_THROWS_WITH(hd::require_cluster<machines>(t, std::vector<int>{1, 2, 3, 0}),
                    Contains("rank 1 (physical rank 2)"));
  CHECK_THROWS_WITH(hd::require_cluster<machines>(t, std::vector<int>{1}), Contains("another length"));
  CHECK_THROWS_WITH(hd::require_cluster<machines>(topology(5)), Contains("a cluster of 4") && Contains("of 5 ranks"));
}

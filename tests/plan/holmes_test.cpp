// tests/plan/holmes_test.cpp: shares by speed, and which axis crosses two clusters, as Holmes has them.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/axis_network.hpp>
#include <heddle/plan/layer_partition.hpp>
#include <heddle/plan/shares_by_speed.hpp>

#include "two_clusters/simulated_step.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::link_kind;
using hd::plan::shares_by_speed;

TEST_CASE("layers by speed are the published ones for these ratios", "[plan][holmes]") {
  for (int i = 0; i <= 400; ++i) {
    const double ratio = 1 + i / 1000.0;
    CAPTURE(ratio);
    const bool published = shares_by_speed(30, {{ratio}, {1}}) == std::vector{16, 14} &&
                           shares_by_speed(48, {{ratio}, {1}}) == std::vector{26, 22};
    CHECK(published == (ratio > 1.1818 && ratio < 1.2857));  // 26/22 and 9/7
  }
  CHECK(shares_by_speed(23, {{1.5, 2}, {1, 3}}) == std::vector{6, 5, 4, 4, 4});
  CHECK(shares_by_speed(30, {{0.6}, {0.4}}) == std::vector{18, 12});  // 30 * 0.6 is a little below 18
  CHECK(shares_by_speed(3, {{100}, {1}, {1}}) == std::vector{1, 1, 1});
}

TEST_CASE("layers by speed add up, leave no stage empty and grow with speed", "[plan][holmes]") {
  const hd::counter_random random(20261129, 5);
  INFO("seed 20261129");
  std::uint64_t at = 0;
  int slower = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<hd::plan::stages_of_speed> clusters(1 + random.integer(at++) % 4);
    int stages = 0;
    for (auto& c : clusters) {
      c = {0.2 + random.uniform(at++), 1 + static_cast<int>(random.integer(at++) % 3)};
      stages += c.stages;
    }
    const int layers = stages + static_cast<int>(random.integer(at++) % 60);
    const std::vector<int> counts = shares_by_speed(layers, clusters);
    int sum = 0;
    for (const int n : counts) sum += n;
    REQUIRE(sum == layers);
    REQUIRE(counts.size() == static_cast<std::size_t>(stages));
    REQUIRE(*std::min_element(counts.begin(), counts.end()) >= 1);
    const int first = counts[0];
    clusters[0].speed *= 1.1;
    slower += shares_by_speed(layers, clusters)[0] < first;
  }
  CHECK(slower == 0);
  CHECK_THROWS_WITH(shares_by_speed(3, {{1, 2}, {1, 2}}), Contains("3 layers on 4 stages"));
  CHECK_THROWS_WITH(shares_by_speed(9, {{1, 2}, {0, 2}}), Contains("not 0 and 2"));
  CHECK_THROWS_AS(shares_by_speed(9, {}), hd::config_error);
}

TEST_CASE("on two clusters only pipelines cross, a message for each pair of dp and tp", "[plan][holmes]") {
  using hd::dp, hd::pp, hd::tp;
  int meshes = 0;
  for (const int ranks : {8, 16})
    for (int p = 2; p <= ranks; p *= 2)
      for (int d = 1; p * d <= ranks; d *= 2) {
        const hd::mesh<hd::axis<pp>, hd::axis<dp>, hd::axis<tp>> mesh(p, d, ranks / p / d);
        hd::topology t(ranks);  // cards in turn, so that no neighbours share one
        for (int r = 0; r < ranks; ++r) t.place(r, {r, r, 0, 0, r % 2 == 0 ? link_kind::roce : link_kind::infiniband});
        const std::vector<int> order = hd::sorted_ranks(t);
        CHECK(hd::network_along<dp, tp>(mesh, t, order).mixed == 0);
        int crossing = 0;
        for (int r = 0; r < ranks; ++r) {
          const int i = mesh.group_index<pp>(r);
          if (i + 1 == p) continue;
          const auto nic = [&](int rank) { return t.place(order[static_cast<std::size_t>(rank)]).nic; };
          crossing += nic(r) != nic(mesh.group_member<pp>(r, i + 1));
        }
        CHECK(crossing == ranks / p);  // dp x tp pairs at the one cut
        ++meshes;
      }
  CHECK(meshes == 6 + 10);
}

TEST_CASE("pipelines may cross slow networks, data parallelism may not", "[plan][holmes]") {
  using hd::dp, hd::pp, hd::tp;
  const two_clusters::job job;
  const hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 4>, hd::axis<tp, 8>> pipeline;
  const hd::mesh<hd::axis<dp, 4>, hd::axis<pp, 2>, hd::axis<tp, 8>> data;
  constexpr double gbps = 1e9 / 8;
  for (const double rate : {5.0, 10.0, 25.0, 50.0}) {
    CAPTURE(rate);
    const auto one = two_clusters::clusters(4, 200 * gbps, rate * gbps, link_kind::infiniband, link_kind::infiniband);
    const auto two = two_clusters::clusters(4, 200 * gbps, rate * gbps, link_kind::infiniband, link_kind::roce);
    // Half of it through each of two cards, between which messages are split.
    const auto slow =
        two_clusters::clusters(4, rate * gbps / 2, rate * gbps / 2, link_kind::ethernet, link_kind::ethernet);
    const double fast = two_clusters::step_seconds(pipeline, one, hd::sorted_ranks(one), job);
    const double pipeline_across = two_clusters::step_seconds(pipeline, two, hd::sorted_ranks(two), job);
    const double data_across = two_clusters::step_seconds(data, two, hd::sorted_ranks(two), job);
    const double ethernet = two_clusters::step_seconds(pipeline, slow, hd::sorted_ranks(slow), job);
    CHECK(fast <= pipeline_across);
    CHECK(pipeline_across < data_across);
    CHECK(data_across < ethernet);
    if (rate == 25) {
      CHECK(fast / pipeline_across >= 0.9);
      CHECK(fast / data_across < 0.8);
      CHECK(fast / ethernet < 0.7);
    }
  }
}

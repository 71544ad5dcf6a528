#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/round_load.hpp>
#include <heddle/mesh/topologies.hpp>

#include "catch.hpp"
#include "collective/plain_rounds.hpp"

#include <vector>

namespace hd = heddle;
namespace topologies = heddle::topologies;

TEST_CASE(
    "an exchange at distance d loads a ring with d messages per link, at the opposite rank with a quarter of the ring",
    "[comm][rounds][law]") {
  for (const int n : {3, 4, 5, 8, 9, 16, 31, 32}) {
    const hd::topology ring = topologies::ring(n, {2e-6, 1e9});
    for (int d = 1; 2 * d <= n; ++d) {
      const hd::round_table rounds = plain_rounds::exchange(n, d);
      const hd::load_map load(rounds, ring, 100 * n, 4);
      CAPTURE(n, d);
      REQUIRE(load.rounds() == 1);
      const double expected = 2 * d == n ? n / 4.0 : d;
      CHECK(load[0].dilation == d);
      CHECK(load[0].congestion == Approx(expected));
      CHECK(load[0].bytes == Approx(400 * expected));
      CHECK(load[0].latency == Approx(2e-6 * d));
      CHECK(load[0].transfer == Approx(400 * expected / 1e9));
      CHECK(load.seconds() == Approx(2e-6 * d + 400 * expected / 1e9));
      for (int l = 0; l < load.links(); ++l) CHECK(load.messages(0, l) == Approx(expected));
    }
  }
  // Along one way only, links of the other direction are idle and those of this one carry twice as much.
  const hd::round_table half = plain_rounds::exchange(8, 4);
  const hd::load_map single(half, topologies::ring(8), 8, 1, hd::routing::single);
  CHECK(single[0].congestion == 4);
}

TEST_CASE("every byte of a message crosses each link of its way once", "[comm][rounds][law]") {
  struct named {
    hd::round_table rounds;
    hd::topology network;
  };
  std::vector<named> cases;
  for (const int n : {2, 4, 8, 16}) {
    cases.push_back({plain_rounds::halving_doubling(n), topologies::torus({2, n / 2})});
    cases.push_back({plain_rounds::ring(n, true), topologies::star(n)});
    cases.push_back({plain_rounds::shifts(n), topologies::ring(n)});
    cases.push_back({plain_rounds::shifts(n, true), topologies::nodes(2, n / 2, {1e-6, 1e9}, {1e-5, 1e8})});
  }
  for (const named& c : cases)
    for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, std::int64_t{1000}})
      for (const auto how : {hd::routing::single, hd::routing::split}) {
        const hd::round_view view = c.rounds;
        const hd::load_map load(view, c.network, elements, 8, how);
        double crossed = 0, sent = 0;
        for (int l = 0; l < load.links(); ++l) crossed += load.bytes(l);
        for (const hd::round_transfer& t : view.transfers()) {
          std::int64_t bytes = 0;
          for (const int item : view.items_of(t)) {
            // Cut evenly, the first ones an element longer.
            const bool to_each = view.what() == hd::comm_operation::all_to_all;  // cuts what one rank sends
            const std::int64_t blocks = to_each ? view.ranks() : view.blocks(), b = item % blocks;
            bytes += 8 * (elements / blocks + (b < elements % blocks ? 1 : 0));
          }
          sent += static_cast<double>(bytes) * c.network.hops(t.from, t.to);
        }
        CAPTURE(view.ranks(), elements);
        CHECK(crossed == Approx(sent));
      }
}

TEST_CASE("items are parts of blocks, and a link's time is its own", "[comm][rounds]") {
  hd::round_builder builder(hd::comm_operation::broadcast, 2, 0, 2, 3);
  builder.send(0, 0, 1).item(0).item(4);  // part 0 of block 0, part 1 of block 1
  builder.send(1, 1, 0).block(1);
  const hd::round_table rounds = builder.take();
  hd::topology two(2);
  two.add_link(0, 1, {1e-6, 10, hd::link_kind::other});
  two.add_link(1, 0, {3e-6, 1000, hd::link_kind::other});
  // 11 elements: blocks of 6 and 5, parts 2 2 2 and 2 2 1.
  const hd::load_map load(rounds, two, 11, 4);
  CHECK(load.bytes(0, 0) == 16);
  CHECK(load.bytes(1, 1) == 20);
  CHECK(load.bytes(0, 1) == 0);
  CHECK(load[0].busiest == 0);
  CHECK(load[1].busiest == 1);
  CHECK(load[0].transfer == Approx(1.6));
  CHECK(load.seconds() == Approx(1.6 + 1e-6 + 0.02 + 3e-6));
  CHECK(load.bytes(0) == 16);
}

TEST_CASE("a round whose messages find no way is not possible", "[comm][rounds]") {
  hd::topology pairs(4);
  pairs.add_both(0, 1, {});
  pairs.add_both(2, 3, {});
  const hd::round_table rounds = plain_rounds::doubling(4);
  const hd::load_map load(rounds, pairs, 4, 4);
  CHECK(load[0].possible);
  CHECK_FALSE(load[1].possible);
  CHECK_THROWS_WITH(hd::load_map(rounds, hd::topology(3), 4, 4),
                    "heddle: the rounds are for 4 ranks, the topology has 3");
  // Ranks that do not forward are in the way.
  hd::topology line(3);
  line.add_both(0, 1, {});
  line.add_both(1, 2, {});
  hd::round_builder builder(hd::comm_operation::broadcast, 3, 0, 1, 1);
  builder.send(0, 0, 2).block(0);
  const hd::round_table far = builder.take();
  CHECK(hd::load_map(far, line, 1, 1)[0].possible);
  line.ranks_forward(false);
  CHECK_FALSE(hd::load_map(far, line, 1, 1)[0].possible);
}

TEST_CASE("reduce-scatters on a ring of 128: hops, congestion, and bytes times congestion", "[comm][rounds][formula]") {
  namespace algo = heddle::algo;
  constexpr auto what = hd::comm_operation::reduce_scatter;
  const hd::topology ring = topologies::ring(128);
  const hd::round_table swing = algo::swing::rounds<what>(128, 0);
  const hd::load_map load(swing, ring, 128 * 1000, 1);
  std::vector<int> hops, congestion;
  for (int k = 0; k < load.rounds(); ++k) {
    hops.push_back(load[k].dilation);
    congestion.push_back(static_cast<int>(load[k].congestion + 0.5));
  }
  CHECK(hops == std::vector<int>{1, 1, 3, 5, 11, 21, 43});
  CHECK(congestion == std::vector<int>{1, 1, 2, 3, 6, 11, 22});
  // What the busiest links carry, in vectors.
  const auto carried = [&](const hd::round_table& rounds) {
    const hd::load_map map(rounds, ring, 128 * 1000, 1);
    double sum = 0;
    for (int k = 0; k < map.rounds(); ++k) sum += map[k].bytes;
    return sum / 128000;
  };
  CHECK(carried(swing) == Approx(1.71875));
  CHECK(carried(algo::recursive_doubling::rounds<what>(128, 0)) == Approx(3.25));
  CHECK(carried(algo::recursive_halving::rounds<what>(128, 0)) == Approx(26.67).epsilon(1e-3));
  CHECK(carried(algo::ring::rounds<what>(128, 0)) == Approx(127.0 / 128));
}

TEST_CASE("loads are computed at compile time too", "[comm][rounds]") {
  constexpr double congestion = [] {
    const hd::round_table rounds = plain_rounds::halving_doubling(8);
    return hd::load_map(rounds, topologies::ring(8), 8, 1)[0].congestion;
  }();
  STATIC_REQUIRE(congestion == 2);
}

TEST_CASE("blocks with sizes of their own load links and count as bytes", "[comm][rounds]") {
  hd::round_builder builder(hd::comm_operation::send, 3, 0, 3, 2);
  builder.send(0, 0, 1).block(0).item(3);
  builder.send(1, 1, 2).block(2);
  hd::round_table rounds = builder.take();
  rounds.sizes = {7, 5, 100};
  const hd::round_view view = rounds;
  CHECK(hd::extent_of(view, 0, 0) == hd::item_extent{0, 4});
  CHECK(hd::extent_of(view, 3, 0) == hd::item_extent{10, 2});
  CHECK(hd::bytes_sent(view, 0, 0, 1) == 9);
  CHECK(hd::bytes_sent(view, 1, 12345, 2) == 200);
  CHECK(hd::total_bytes(view, 0, 1) == 109);
  const hd::load_map load(rounds, topologies::full(3, {0, 1}), 0, 1);
  CHECK(load[0].bytes == 9);
  CHECK(load[1].bytes == 100);
  CHECK(hd::seconds(view, hd::hockney{.alpha = 1, .beta = 2}, 0, 1) == 1 + 18 + 1 + 200);
  CHECK(view.sizes().size() == 3);
  CHECK(hd::round_table{}.view().sizes().empty());
}

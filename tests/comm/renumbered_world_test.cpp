// Worlds in another order of ranks: the groups move on the cluster, the numbers stay the same bits.
#include <heddle/mesh/rank_order.hpp>
#include <heddle/mesh/topologies.hpp>

#include "support.hpp"

using namespace comm_test;

namespace {
using cube = hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 2>, hd::axis<tp, 2>>;

// A step of work that shows its order of folding in its last bits; by mesh rank.
float work(auto& world) {
  float x = 1.0f / static_cast<float>(3 + world.rank() * world.rank());
  for (int k = 0; k < 4; ++k) {
    world.template along<tp>().all_reduce(std::span(&x, 1), hd::plus{});
    x = x * 0.37f + 0.01f * static_cast<float>(world.rank());
    world.template along<dp, pp>().all_reduce(std::span(&x, 1), hd::plus{});
    std::vector<float> all(static_cast<std::size_t>(world.size()));
    world.all().all_gather(std::span(&x, 1), std::span(all));
    for (const float y : all) x = x * 0.9f + y;
  }
  return x;
}
}  // namespace

TEST_CASE("a renumbered world has the groups of the new order and computes the same bits", "[comm][world]") {
  // Two nodes of four; the launch dealt ranks to them in turns, so that every tp group lies on both.
  hd::topology t(8);
  for (int r = 0; r < 8; ++r) t.place(r, {r, r % 2, 0, 0, hd::link_kind::infiniband});
  const std::vector<int> order = hd::sorted_ranks(t);
  CHECK(order == std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7});
  CHECK(hd::spread_along<tp>(cube{}, t, hd::cluster_level::node).crossing == 4);
  CHECK(hd::spread_along<tp>(cube{}, t, hd::cluster_level::node, order).crossing == 0);

  if (most_ranks() < 8) return;
  std::vector<float> plain(8), moved(8);
  std::vector<int> launched(8);
  notes notes(8);
  launch(cube{}, [&](auto& world) {
    const int r = world.rank();
    plain[static_cast<std::size_t>(r)] = work(world);
    auto placed = world.renumbered(order);
    launched[static_cast<std::size_t>(placed.rank())] = r;
    moved[static_cast<std::size_t>(placed.rank())] = work(placed);
    int same_node = t.place(r).node;
    placed.template along<tp>().all_reduce(std::span(&same_node, 1), hd::plus{});
    notes.expect(r, same_node == 2 * t.place(r).node, "tp stays in a node");
    auto back = placed.renumbered(hd::inverse_order(order));
    notes.expect(r, back.rank() == r, "the inverse order leads back");
    auto stage = placed.template sub<dp, tp>();
    int sum = r;
    stage.all().all_reduce(std::span(&sum, 1), hd::plus{});
    notes.expect(r, sum == (t.place(r).node == 0 ? 0 + 2 + 4 + 6 : 1 + 3 + 5 + 7), "a stage is a node");
  });
  notes.report();
  share(plain);
  for (std::size_t k = 0; k < 8; ++k) {
    tell(moved[k], order[k]);
    tell(launched[k], order[k]);
  }
  CHECK(launched == order);
  CHECK(plain == moved);
}

TEST_CASE("a world is not renumbered by a list that is no order", "[comm][world][error]") {
  if (most_ranks() < 2) return;
  using Catch::Matchers::Contains;
  const auto renumber = [](const std::vector<int>& order) {
    launch(hd::mesh<hd::axis<dp, 2>>{}, [&](auto& world) { auto other = world.renumbered(order); });
  };
  CHECK_THROWS_WITH(renumber({0}), Contains("an order of 1 ranks for a world of 2"));
  CHECK_THROWS_WITH(renumber({1, 1}), Contains("twice rank 1"));
}

// Worlds on a mesh of their own: some ranks of a world, or all of them in another order.
#include "support.hpp"

using namespace comm_test;

namespace {
struct replica {};
using square = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using turned = hd::mesh<hd::axis<dp>, hd::axis<tp>, hd::axis<replica>>;

// The ranks of `world` that a communicator has, in its order.
std::vector<int> ranks_of(auto& c, int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(c.size()));
  c.all_gather(std::span(&rank, 1), ranks);
  return ranks;
}
}  // namespace

TEST_CASE("a world on another mesh has the ranks of its list, in their order", "[comm][world]") {
  if (most_ranks() < 8) return;
  notes notes(8);
  launch(hd::mesh<hd::axis<dp, 8>>{}, [&](auto& world) {
    const int r = world.rank();
    const std::vector<int> some{6, 1, 5, 2, 0, 7};
    auto there = world.on(square(3, 2), some);
    const auto at = std::find(some.begin(), some.end(), r);
    notes.expect(r, there.has_value() == (at != some.end()), "who is among them");
    if (there) {
      notes.expect(r, there->rank() == at - some.begin() && there->size() == 6, "place");
      notes.expect(r, ranks_of(there->all(), r) == some, "members");
      notes.expect(r, ranks_of(there->control(), r) == some, "control plane");
      const auto row = static_cast<std::size_t>(there->rank() / 2 * 2);
      notes.expect(r, ranks_of(there->template along<tp>(), r) == std::vector<int>{some[row], some[row + 1]}, "tp");
      // Of a world of its own ranks, numbers are those of that world.
      auto inside = there->on(hd::mesh<hd::axis<tp, 2>>{}, std::array{5, 0});
      notes.expect(r, inside.has_value() == (r == 7 || r == 6), "who is among the last and the first");
      if (inside) notes.expect(r, ranks_of(inside->all(), r) == std::vector<int>{7, 6}, "last and first");
      auto column = there->template sub<dp>();
      notes.expect(r, column.size() == 3 && column.rank() == there->rank() / 2, "a sub-world");
    }
    // All of them on a mesh whose last axis lies inside tp: groups of tp are at stride 2.
    std::vector<int> all(8);
    std::iota(all.begin(), all.end(), 0);
    auto whole = world.on(turned(2, 2, 2), all);
    notes.expect(r, ranks_of(whole->template along<tp>(), r) == std::vector<int>{r & ~2, r | 2}, "groups at stride 2");
    std::reverse(all.begin(), all.end());
    int sum = world.on(square(2, 4), all)->rank();
    notes.expect(r, sum == 7 - r, "reversed");
    world.all().all_reduce(std::span(&sum, 1), hd::plus{});  // the world itself is as it was
    notes.expect(r, sum == 28, "the world below");
  });
  notes.report();
}

TEST_CASE("a list that is none of a world's ranks is refused with the number that does not fit",
          "[comm][world][error]") {
  if (most_ranks() < 4) return;
  using Catch::Matchers::Contains;
  const auto on = [](const std::vector<int>& ranks) {
    launch(hd::mesh<hd::axis<dp, 4>>{}, [&](auto& world) { auto other = world.on(hd::mesh<hd::axis<tp>>(2), ranks); });
  };
  CHECK_THROWS_AS(on({0}), hd::config_error);
  CHECK_THROWS_WITH(on({0}), Contains("`ranks` of world.on(mesh, ranks) names 1 ranks, but the mesh has 2"));
  CHECK_THROWS_WITH(on({0, 1, 2}), Contains("names 3 ranks, but the mesh has 2"));
  CHECK_THROWS_WITH(on({3, 4}), Contains("names rank 4, but the world has ranks 0 to 3"));
  CHECK_THROWS_WITH(on({-1, 0}), Contains("names rank -1, but the world has ranks 0 to 3"));
  CHECK_THROWS_WITH(on({2, 2}), Contains("names rank 2 twice"));
}

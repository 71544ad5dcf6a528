// Worlds: the place of a rank on the mesh, the communicators along axes, sub-worlds, and several worlds at once.
#include "support.hpp"

#include <atomic>
#include <thread>

using namespace comm_test;

namespace {
using cube = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 3>, hd::axis<tp, 2>>;
using mixed = hd::mesh<hd::axis<dp>, hd::axis<pp, 3>, hd::axis<tp>>;

// The world ranks of a communicator, in its order.
std::vector<int> ranks_of(auto& c, int world_rank) {
  std::vector<int> ranks(static_cast<std::size_t>(c.size()));
  c.all_gather(std::span(&world_rank, 1), ranks);
  return ranks;
}
}  // namespace

TEST_CASE("communicators along axes hold the ranks of the mesh's groups, in their order", "[comm][world]") {
  const auto body = [](notes& notes) {
    return [&notes](auto& world) {
      const int r = world.rank();
      const auto check = [&](auto& c, const std::vector<int>& expected, const char* what) {
        notes.expect(r, c.size() == static_cast<int>(expected.size()), std::string("size ") + what);
        notes.expect(r, expected[static_cast<std::size_t>(c.rank())] == r, std::string("place ") + what);
        notes.expect(r, ranks_of(c, r) == expected, std::string("members ") + what);
      };
      const auto& mesh = world.mesh();
      check(world.all(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "all");
      check(world.template along<tp>(), hd::group<tp>(mesh, r), "tp");
      check(world.template along<pp>(), hd::group<pp>(mesh, r), "pp");
      check(world.template along<dp>(), hd::group<dp>(mesh, r), "dp");
      check(world.template along<dp, tp>(), hd::group<dp, tp>(mesh, r), "dp,tp");
      check(world.template along<tp, dp>(), hd::group<tp, dp>(mesh, r), "tp,dp");
      check(world.template along<tp, dp, pp>(), hd::group<tp, dp, pp>(mesh, r), "tp,dp,pp");
      check(world.template along<>(), {r}, "none");
      check(world.template along_if<hd::cp, pp, hd::ep>(), hd::group<pp>(mesh, r), "pp of cp,pp,ep");
      check(world.template along_if<hd::cp>(), {r}, "cp");
      notes.expect(r, &world.template along<tp>() == &world.template along<tp>(), "one communicator per group of axes");
      notes.expect(r, world.template along<tp, dp>().name() == "tp,dp", "name");
      notes.expect(r, world.template coordinate<pp>() == r / 2 % 3, "coordinate");
      notes.expect(r, world.size() == 12, "size");
    };
  };
  if (most_ranks() < 12) return;
  notes fixed(12), dynamic(12);
  launch(cube{}, body(fixed));
  launch(mixed{2, 2}, body(dynamic));
  fixed.report();
  dynamic.report();
}

TEST_CASE("sub-worlds are worlds on the sub-mesh, also nested", "[comm][world]") {
  if (most_ranks() < 12) return;
  notes notes(12);
  launch(cube{}, [&](auto& world) {
    const int r = world.rank();
    auto plane = world.template sub<pp, tp>();
    static_assert(std::is_same_v<typename decltype(plane)::mesh_type, hd::mesh<hd::axis<pp, 3>, hd::axis<tp, 2>>>);
    notes.expect(r, plane.size() == 6 && plane.rank() == r % 6, "place in the plane");
    notes.expect(r, ranks_of(plane.all(), r) == hd::group<pp, tp>(world.mesh(), r), "members of the plane");
    notes.expect(r, ranks_of(plane.template along<tp>(), r) == hd::group<tp>(world.mesh(), r), "rows of the plane");
    auto turned = world.template sub<tp, pp>();
    notes.expect(r, ranks_of(turned.all(), r) == hd::group<tp, pp>(world.mesh(), r), "members of the turned plane");
    auto column = turned.template sub<pp>();
    notes.expect(r, column.rank() == world.template coordinate<pp>(), "place in the column");
    notes.expect(r, ranks_of(column.all(), r) == hd::group<pp>(world.mesh(), r), "members of the column");
    int x = r;
    column.all().all_reduce(std::span(&x, 1), hd::plus{});
    int y = r;
    world.template along<pp>().all_reduce(std::span(&y, 1), hd::plus{});
    notes.expect(r, x == y, "the same ranks");
    notes.expect(r, column.template along_if<dp>().size() == 1, "an axis the sub-world lacks");
  });
  notes.report();
}

TEST_CASE("an all-to-all over a grid is two all-to-alls over its axes", "[comm][world][law]") {
  using grid = hd::mesh<hd::axis<dp, 3>, hd::axis<tp, 2>>;
  if (most_ranks() < 6) return;
  notes notes(6);
  launch(grid{}, [&](auto& world) {
    constexpr int rows = 3, columns = 2;
    const auto in = buffer<int>(world.rank(), rows * columns);
    std::vector<int> direct(in.size()), a(in.size()), b(in.size()), c(in.size());
    world.all().all_to_all(in, direct);
    world.template along<dp>().all_to_all(in, a);  // a[i][j]: from row i of my column, for column j of my row
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) b[j * rows + i] = a[i * columns + j];
    world.template along<tp>().all_to_all(b, c);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) a[i * columns + j] = c[j * rows + i];
    notes.expect(world.rank(), a == direct, "grid");
  });
  notes.report();
}

TEST_CASE("split groups ranks by color, ordered by key, then rank", "[comm][world]") {
  for (const int p : rank_counts(9)) {
    notes notes(p);
    launch(line{p}, [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      for (int round = 0; round < 3; ++round) {
        auto part = c.split(r % 3, (r / 3) % 2 == 0 ? 5 : -5);
        std::vector<int> expected;
        for (const int odd : {1, 0})
          for (int q = r % 3; q < p; q += 3)
            if (q / 3 % 2 == odd) expected.push_back(q);
        notes.expect(r, ranks_of(part, r) == expected, "members");
        auto again = part.split(0, -part.rank());
        std::reverse(expected.begin(), expected.end());
        notes.expect(r, ranks_of(again, r) == expected, "split of a split");
        int x = r;
        again.all_reduce(std::span(&x, 1), hd::plus{});
        notes.expect(r, x == std::accumulate(expected.begin(), expected.end(), 0), "sum");
      }
    });
    notes.report();
  }
}

TEST_CASE("many splits leave nothing behind", "[comm][world]") {
  if (most_ranks() < 3) return;
  launch(line{3}, [](auto& world) {
    for (int i = 0; i < 500; ++i) {
      auto part = world.all().split(i % 2, 0);
      part.barrier();
    }
  });
  SUCCEED();
}

TEST_CASE("several worlds live side by side and inside each other", "[comm][world][threads]") {
  std::atomic<int> sum{0};
  const auto run = [&](int p, int weight) {
    hd::launch<hd::threads>(line{p}, [&](auto& world) {
      for (int i = 0; i < 50; ++i) {
        int x = weight;
        world.all().all_reduce(std::span(&x, 1), hd::plus{});
        if (world.rank() == 0) sum += x;
      }
      hd::launch<hd::threads>(line{2}, [&](auto& inner) {
        int y = 1;
        inner.all().all_reduce(std::span(&y, 1), hd::plus{});
        sum += y * 1'000'000;
      });
    });
  };
  std::thread other([&] { run(3, 1); });
  run(4, 100);
  other.join();
  CHECK(sum == 50 * 3 + 50 * 400 + (3 + 4) * 2 * 2 * 1'000'000);
}

TEST_CASE("launch takes the mesh as type or value, arguments and options", "[comm][world][threads]") {
  using pair = hd::mesh<hd::axis<dp, 2>>;
  std::atomic<int> calls{0};
  const auto body = [&](auto& world) { calls += world.size(); };
  char* none[] = {nullptr};
  CHECK(hd::launch<hd::threads, pair>(body) == 0);
  CHECK(hd::launch<hd::threads, pair>(hd::launch_options{}, body) == 0);
  CHECK(hd::launch<hd::threads, pair>(0, none, body) == 0);
  CHECK(hd::launch<hd::threads, pair>(0, none, hd::launch_options{}, body) == 0);
  CHECK(hd::launch<hd::threads>(line{2}, body) == 0);
  CHECK(hd::launch<hd::threads>(line{2}, hd::launch_options{}, body) == 0);
  CHECK(hd::launch<hd::threads>(0, none, line{2}, body) == 0);
  CHECK(hd::launch<hd::threads>(0, none, line{2}, hd::launch_options{}, body) == 0);
  CHECK(calls == 8 * 4);

  hd::launch_options options;
  options.ranks = 3;
  CHECK_THROWS_AS(hd::launch<hd::threads>(line{2}, options, body), hd::mesh_error);
  CHECK_THROWS_WITH(hd::launch<hd::threads>(line{2}, options, body),
                    Catch::Matchers::Contains("has 2 ranks, but the world has 3"));
  options.ranks = 2;
  CHECK(hd::launch<hd::threads>(line{2}, options, body) == 0);
}

TEST_CASE("rank 0 runs on the calling thread", "[comm][world][threads]") {
  std::vector<std::thread::id> ids(2);
  hd::launch<hd::threads>(
      line{2}, [&](auto& world) { ids[static_cast<std::size_t>(world.rank())] = std::this_thread::get_id(); });
  CHECK(ids[0] == std::this_thread::get_id());
  CHECK(ids[1] != ids[0]);
}

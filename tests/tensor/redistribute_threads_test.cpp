#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/testing/checked_memory.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
// Goes round all placements of one axis and back, in memory of a space; on each rank, whether the part came back as it left.
template <class Space, class Mesh, class World>
bool goes_round(World& world, std::int64_t n, std::int64_t m) {
  using S0 = hd::layout<Mesh, hd::shard<0, dp, tp>>;
  using S1 = hd::layout<Mesh, hd::shard<0, dp>, hd::shard<1, tp>>;
  using R = hd::layout<Mesh, hd::shard<0, dp>>;
  using P = hd::layout<Mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  const hd::shape s{n, m};
  std::vector<double> whole(static_cast<std::size_t>(s.size()));
  std::iota(whole.begin(), whole.end(), 1.0);
  const hd::view<const double, hd::dynamic_shape<2>> v(whole.data(), s);
  const auto start = hd::shard_of(v, S0{world.mesh()}, world.rank());
  typename Space::queue queue;
  const auto there = hd::copy_to<Space>(queue, start);
  auto x = hd::redistribute<S1>(there, world, queue);                // all_to_all
  auto y = hd::redistribute<P>(std::move(x), world, queue);          // pad
  const auto z = hd::redistribute<S0>(y, world, queue);              // reduce_scatter
  auto u = hd::redistribute<R>(std::move(y), world, queue);          // all_reduce in place
  auto p = hd::redistribute<P>(std::move(u), world, queue);          // keep on owner
  auto t = hd::redistribute<R>(hd::redistribute<S1>(p, world, queue), world, queue);  // reduce_scatter, all_gather inside rows
  const auto back = hd::redistribute<S0>(std::move(t), world, queue);                 // slice
  const auto same = [&](const auto& part) {
    const auto here = hd::copy_to<hd::host_memory>(queue, part);
    return std::equal(start.elements().begin(), start.elements().end(), here.elements().begin(), here.elements().end());
  };
  return same(back) && same(z);
}
}  // namespace

TEMPLATE_TEST_CASE("redistribute runs on ranks, even and uneven", "[tensor][redistribute][comm][ranks]", hd::host_memory,
                   hd::testing::checked_memory) {
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;
  using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
  if (!transport_test::on_threads && !TestType::host_accessible) return;  // its queues are threads, which MPI is not told of
  for (std::int64_t n : {0, 1, 7, 12})
    for (std::int64_t m : {1, 6, 8}) {
      CAPTURE(n, m);
      std::vector<char> ok(6, 0);
      transport_test::launch<fixed>([&](auto& world) {
        ok[static_cast<std::size_t>(world.rank())] = goes_round<TestType, fixed>(world, n, m);
      });
      transport_test::share(ok);
      CHECK(ok == std::vector<char>(6, 1));
      ok.assign(4, 0);
      transport_test::launch(some{1, 4}, [&](auto& world) {
        ok[static_cast<std::size_t>(world.rank())] = goes_round<TestType, some>(world, n, m);
      });
      transport_test::share(ok);
      CHECK(ok == std::vector<char>(4, 1));
    }
}

#if !defined(HEDDLE_TEST_MPI)
namespace {
// Each collective and message once, of numbers that say who sent what; what the rank has at the end.
template <class Space, class World>
std::vector<std::int64_t> each_call(World& world) {
  auto& comm = world.all();
  const std::int64_t p = comm.size(), me = comm.rank();
  typename Space::queue queue;
  std::vector<std::int64_t> all;
  const auto with = [&](std::int64_t sent, std::int64_t received, auto&& call) {
    std::vector<std::int64_t> in(static_cast<std::size_t>(sent)), out(static_cast<std::size_t>(received));
    for (std::int64_t i = 0; i < sent; ++i) in[static_cast<std::size_t>(i)] = 100 * me + i;
    hd::buffer<std::int64_t, Space> from(queue, sent), to(queue, received);
    queue.copy(in, from);
    call(from, to);
    queue.copy(to, out);
    queue.wait();
    all.insert(all.end(), out.begin(), out.end());
  };
  std::vector<std::int64_t> uneven(static_cast<std::size_t>(p), 1);  // the last has one more
  uneven.back() = 2;
  const std::int64_t mine = uneven[static_cast<std::size_t>(me)];
  with(3, 3, [&](auto& a, auto& b) { hd::all_reduce(queue, comm, a, b, hd::plus{}); });
  with(3, 3, [&](auto& a, auto& b) {
    hd::all_reduce(queue, comm, a, hd::maximum{});
    queue.copy(a, b);
  });
  with(2 * p, 2, [&](auto& a, auto& b) { hd::reduce_scatter(queue, comm, a, b, hd::plus{}); });
  with(p + 1, mine, [&](auto& a, auto& b) { hd::reduce_scatter_v(queue, comm, a, b, uneven, hd::plus{}); });
  with(2, 2 * p, [&](auto& a, auto& b) { hd::all_gather(queue, comm, a, b); });
  with(mine, p + 1, [&](auto& a, auto& b) { hd::all_gather_v(queue, comm, a, b, uneven); });
  with(p, p, [&](auto& a, auto& b) { hd::all_to_all(queue, comm, a, b); });
  const std::vector<std::int64_t> same(static_cast<std::size_t>(p), mine);
  with(p + 1, mine * p, [&](auto& a, auto& b) { hd::all_to_all_v(queue, comm, a, uneven, b, same); });
  with(2, 2, [&](auto& a, auto& b) {
    hd::broadcast(queue, comm, a, 1);
    queue.copy(a, b);
  });
  with(2, 2, [&](auto& a, auto& b) {  // in a chain
    if (me > 0) hd::recv(queue, comm, b, static_cast<int>(me) - 1, 7);
    if (me + 1 < p) hd::send(queue, comm, a, static_cast<int>(me) + 1, 7);
  });
  return all;
}
// The same by definition.
std::vector<std::int64_t> each_by_definition(std::int64_t p, std::int64_t me) {
  std::vector<std::int64_t> all;
  const std::int64_t last = p - 1, total = 100 * p * last / 2, mine = me == last ? 2 : 1;
  const auto sum_of = [&](std::int64_t i) { return total + p * i; };
  for (std::int64_t i = 0; i < 3; ++i) all.push_back(sum_of(i));
  for (std::int64_t i = 0; i < 3; ++i) all.push_back(100 * last + i);
  for (std::int64_t i = 0; i < 2; ++i) all.push_back(sum_of(2 * me + i));
  for (std::int64_t i = 0; i < mine; ++i) all.push_back(sum_of(me + i));
  for (std::int64_t r = 0; r < p; ++r)
    for (std::int64_t i = 0; i < 2; ++i) all.push_back(100 * r + i);
  for (std::int64_t r = 0; r < p; ++r)
    for (std::int64_t i = 0; i < (r == last ? 2 : 1); ++i) all.push_back(100 * r + i);
  for (std::int64_t r = 0; r < p; ++r) all.push_back(100 * r + me);
  for (std::int64_t r = 0; r < p; ++r)
    for (std::int64_t i = 0; i < mine; ++i) all.push_back(100 * r + me + i);
  for (std::int64_t i = 0; i < 2; ++i) all.push_back(100 + i);
  for (std::int64_t i = 0; i < 2; ++i) all.push_back(me == 0 ? 0 : 100 * (me - 1) + i);
  return all;
}
}  // namespace

TEMPLATE_TEST_CASE("every call of a communicator keeps the order of a queue", "[tensor][comm][ranks]", hd::host_memory,
                   hd::testing::checked_memory) {
  using line = hd::mesh<hd::axis<dp>>;
  for (const int p : {2, 3, 5}) {
    CAPTURE(p);
    std::vector<std::vector<std::int64_t>> got(static_cast<std::size_t>(p));
    transport_test::launch(line{p}, [&](auto& world) {
      got[static_cast<std::size_t>(world.rank())] = each_call<TestType>(world);
    });
    for (int r = 0; r < p; ++r) CHECK(got[static_cast<std::size_t>(r)] == each_by_definition(p, r));
  }
}

TEST_CASE("the host communicates while a queue does, each on its own communicators", "[tensor][comm][ranks]") {
  using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;
  std::vector<char> ok(6, 0);
  transport_test::launch<grid>([&](auto& world) {
    hd::testing::checked_memory::queue queue;
    hd::buffer<std::int64_t, hd::testing::checked_memory> x(queue, 1000);
    auto& rows = world.template along<dp>();
    auto& columns = world.template along<tp>();
    bool right = true;
    for (std::int64_t i = 0; i < 20; ++i) {
      queue.run(
          [i](auto v) {
            for (std::int64_t& e : v.elements()) e += i;
          },
          x.view());
      hd::all_reduce(queue, columns, x, hd::plus{});
      std::int64_t mine = i;
      rows.all_reduce(std::span<std::int64_t>(&mine, 1), hd::plus{});
      right = right && mine == 2 * i;
    }
    std::vector<std::int64_t> out(1000);
    queue.copy(x, out);
    queue.wait();
    std::int64_t expected = 0;
    for (std::int64_t i = 0; i < 20; ++i) expected = 3 * (expected + i);
    ok[static_cast<std::size_t>(world.rank())] = right && out == std::vector<std::int64_t>(1000, expected);
  });
  CHECK(ok == std::vector<char>(6, 1));
}

TEST_CASE("a rank that fails ends the world in which others wait for it in a queue", "[tensor][comm][ranks]") {
  using line = hd::mesh<hd::axis<dp, 3>>;
  std::vector<char> told(3, 0);
  const auto run = [&](auto&& fail) {
    told.assign(3, 0);
    hd::launch_options options;
    options.timeout = std::chrono::milliseconds(10'000);
    transport_test::launch(line{}, options, [&](auto& world) {
      hd::testing::checked_memory::queue queue;
      hd::buffer<float, hd::testing::checked_memory> x(queue, 10);
      fail(world, queue, x);
      hd::all_reduce(queue, world.all(), x, hd::plus{});
      try {
        queue.wait();
      } catch (const hd::error&) {
        told[static_cast<std::size_t>(world.rank())] = 1;
        throw;
      }
    });
  };
  const auto on_one = [](auto& world, auto&, auto&) {
    if (world.rank() == 1) throw hd::config_error("heddle: of rank 1");
  };
  CHECK_THROWS_WITH(run(on_one), "rank 1: heddle: of rank 1");
  CHECK(told == std::vector<char>{1, 0, 1});
  const auto in_queue = [](auto& world, auto& queue, auto& x) {
    if (world.rank() == 1) queue.run([](auto) { throw hd::config_error("heddle: of rank 1's queue"); }, x.view());
  };
  CHECK_THROWS_WITH(run(in_queue), "rank 1: heddle: of rank 1's queue");
  CHECK(told == std::vector<char>{1, 1, 1});
}
#endif

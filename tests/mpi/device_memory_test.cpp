// Redistributions, reductions and messages of memory that the host may not touch, through copies on the host or given to MPI as it is: the
// results of the host's memory.
#include "catch.hpp"
#include "tensor/device_memory.hpp"
#include "transport.hpp"

#include <heddle/comm/mpi/device_memory.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using locked = tensor_test::device_memory<false>;
using opened = tensor_test::device_memory<true>;
using opened_cuda = tensor_test::device_memory<true, hd::device_runtime::cuda>;

hd::launch_options with(hd::device_messages device) {
  hd::launch_options o;
  o.device = device;
  o.timeout = std::chrono::milliseconds(20'000);
  return o;
}
// Meshes of as many ranks as there are.
std::vector<mesh> meshes() {
  std::vector<mesh> all;
  for (int d = 1; d <= transport_test::most_ranks(); ++d)
    if (transport_test::most_ranks() % d == 0) all.push_back(mesh{d, transport_test::most_ranks() / d});
  return all;
}

// A rank's parts of a tensor in one space under several layouts, one redistributed from the other, and what reductions and messages give.
template <class Space>
struct trial {
  typename Space::queue queue{};
  std::vector<double> results{};
  std::int64_t with_host = 0;  // bytes that messages copied

  template <class X>
  void note(const X& x) {
    const std::int64_t before = copied();
    std::vector<double> values(static_cast<std::size_t>(x.memory().size()));
    queue.copy(x.memory(), values);
    queue.wait();
    results.insert(results.end(), values.begin(), values.end());
    with_host -= copied() - before;
  }
  std::int64_t copied() const {
    if constexpr (std::is_same_v<Space, hd::host_memory>)
      return 0;
    else
      return queue.bytes_copied_with_host();
  }
  template <class Layout>
  auto tensor(const Layout& layout, std::int64_t rows, std::int64_t columns, int rank) {
    hd::sharded<double, 2, Layout, Space> x(queue, layout, hd::shape(rows, columns), rank);
    const std::int64_t before = copied();
    std::vector<double> values(static_cast<std::size_t>(x.memory().size()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(rank + 1) * 0.37 + static_cast<double>(i) / 7;
    queue.copy(values, x.memory());
    queue.wait();
    with_host -= copied() - before;
    return x;
  }

  template <class World>
  void run(World& world, std::int64_t rows, std::int64_t columns) {
    using hd::layout, hd::shard, hd::partial, hd::plus;
    const mesh m = world.mesh();
    const int r = world.rank();
    const auto split = tensor(layout<mesh, shard<0, dp>, shard<1, tp>>{m}, rows, columns, r);
    const auto turned = hd::redistribute<layout<mesh, shard<0, tp>, shard<1, dp>>>(split, world, queue);
    note(turned);
    note(hd::redistribute<layout<mesh>>(turned, world, queue));
    const auto sums = tensor(layout<mesh, partial<plus, dp>, shard<0, tp>>{m}, rows, columns, r);
    note(hd::redistribute<layout<mesh, shard<0, tp>>>(sums, world, queue));
    note(hd::redistribute<layout<mesh, shard<1, dp>>>(sums, world, queue));
    auto whole = tensor(layout<mesh, partial<plus, dp, tp>>{m}, rows, columns, r);
    auto& all = world.all();
    hd::all_reduce(queue, all, whole.memory(), hd::plus{});
    hd::broadcast(queue, all, whole.memory(), all.size() - 1);
    note(whole);
    if (all.size() > 1) {
      auto ring = tensor(layout<mesh, hd::varying<dp, tp>>{m}, rows, columns, r);
      auto to = tensor(layout<mesh, hd::varying<dp, tp>>{m}, rows, columns, r);
      const int next = (r + 1) % all.size(), last = (r + all.size() - 1) % all.size();
      if (r % 2 == 0) hd::send(queue, all, ring.memory(), next);
      hd::recv(queue, all, to.memory(), last);
      if (r % 2 == 1) hd::send(queue, all, ring.memory(), next);
      note(to);
    }
    with_host += copied();
  }
};

template <class Space>
std::pair<std::vector<double>, std::int64_t> outcome(const mesh& m, hd::device_messages how, std::int64_t rows) {
  std::vector<std::vector<double>> results(static_cast<std::size_t>(m.size()));
  std::vector<std::int64_t> bytes(results.size(), 0);
  transport_test::launch(m, with(how), [&](auto& world) {
    trial<Space> t;
    t.run(world, rows, 6);
    results[static_cast<std::size_t>(world.rank())] = t.results;
    bytes[static_cast<std::size_t>(world.rank())] = t.with_host;
  });
  const auto me = static_cast<std::size_t>(transport_test::process());
  return {results[me], bytes[me]};
}

}  // namespace

TEST_CASE("memory that the host may not touch goes through MPI by copies on the host, by itself", "[mpi][device]") {
  STATIC_REQUIRE_FALSE(hd::runs_host_code<locked::queue>);
  for (const mesh& m : meshes())
    for (const std::int64_t rows : {1, 13}) {
      CAPTURE(to_string(m), rows);
      const auto expected = outcome<hd::host_memory>(m, hd::device_messages::automatic, rows).first;
      const auto [got, bytes] = outcome<locked>(m, hd::device_messages::automatic, rows);
      CHECK(got == expected);
      CHECK(bytes > 0);
      CHECK(outcome<locked>(m, hd::device_messages::staged, rows).first == expected);
    }
}

TEST_CASE("MPI is given addresses of a device where it is said to take them, and nothing is copied", "[mpi][device]") {
  for (const mesh& m : meshes()) {
    CAPTURE(to_string(m));
    const auto expected = outcome<hd::host_memory>(m, hd::device_messages::automatic, 13).first;
    const auto [got, bytes] = outcome<opened>(m, hd::device_messages::direct, 13);
    CHECK(got == expected);
    CHECK(bytes == 0);
    CHECK(outcome<opened>(m, hd::device_messages::staged, 13).second > 0);
  }
}

TEST_CASE("what MPI says of itself decides, and contradicting it is an error that names the space", "[mpi][device]") {
  const mesh m{1, transport_test::most_ranks()};
  const std::optional<bool> says = hd::mpi_takes_memory_of(hd::device_runtime::cuda);
  CHECK_FALSE(hd::mpi_takes_memory_of(hd::device_runtime::other).has_value());
  CAPTURE(hd::mpi_session::library_version());
  CHECK((outcome<opened_cuda>(m, hd::device_messages::automatic, 5).second == 0) == says.value_or(false));
  if (says == false) {
    std::string text;
    try {
      outcome<opened_cuda>(m, hd::device_messages::direct, 5);
    } catch (const hd::comm_error& e) {
      text = e.what();
    }
    CHECK_THAT(text,
               Catch::Contains("device_messages::direct gives MPI the memory of tensor_test::device_memory<true") &&
                   Catch::Contains("but MPI says that it takes no memory of such devices"));
  }
  // The environment decides where the launch leaves it open.
  ::setenv("HEDDLE_DEVICE_MESSAGES", "direct", 1);
  CHECK(hd::detail::mpi_is_given(hd::device_messages::automatic, hd::device_runtime::other, "a space"));
  CHECK_FALSE(hd::detail::mpi_is_given(hd::device_messages::staged, hd::device_runtime::other, "a space"));
  ::setenv("HEDDLE_DEVICE_MESSAGES", "sometimes", 1);
  CHECK_THROWS_WITH(hd::detail::mpi_is_given(hd::device_messages::automatic, hd::device_runtime::other, "a space"),
                    Catch::Contains("should be automatic, direct or staged, it is \"sometimes\""));
  ::unsetenv("HEDDLE_DEVICE_MESSAGES");
}

TEST_CASE("two transports in one program give a tensor the same parts", "[mpi][device]") {
  for (const mesh& m : meshes()) {
    CAPTURE(to_string(m));
    // The other ranks of this mesh are threads of this process, whose parts lie in the host's memory.
    std::vector<std::vector<double>> by_threads(static_cast<std::size_t>(m.size()));
    hd::launch<hd::threads>(m, [&](auto& world) {
      trial<hd::host_memory> t;
      t.run(world, 13, 6);
      by_threads[static_cast<std::size_t>(world.rank())] = t.results;
    });
    const std::vector<double>& expected = by_threads[static_cast<std::size_t>(transport_test::process())];
    const auto got = outcome<locked>(m, hd::device_messages::automatic, 13).first;
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-14));  // sums differ
  }
}

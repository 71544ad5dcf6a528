// Redistributions, reductions and messages of memory that the host may not touch, through copies on the host or given to MPI as it is: the
// results of the host's memory. Pages that MPI may be given are open while it works and closed otherwise.
#include "catch.hpp"
#include "tensor/device_memory.hpp"
#include "transport.hpp"

#include <heddle/comm/mpi/device_memory.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// MPI's calls with elements, around those of its profiling interface. Messages here are short: MPI copies them before a call returns, so
// that no other process reads pages which are closed again.
#define HEDDLE_TEST_OPENS(call, parameters, arguments) \
  extern "C" int MPI_##call parameters {               \
    const tensor_test::transport_call here;            \
    return PMPI_##call arguments;                      \
  }
HEDDLE_TEST_OPENS(Send, (const void* x, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (x, n, t, to, tag, c))
HEDDLE_TEST_OPENS(Isend, (const void* x, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request* r),
                  (x, n, t, to, tag, c, r))
HEDDLE_TEST_OPENS(Recv, (void* x, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status* s),
                  (x, n, t, from, tag, c, s))
HEDDLE_TEST_OPENS(Irecv, (void* x, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request* r),
                  (x, n, t, from, tag, c, r))
HEDDLE_TEST_OPENS(Sendrecv,
                  (const void* x, int n, MPI_Datatype t, int to, int tag, void* y, int m, MPI_Datatype u, int from,
                   int tag_from, MPI_Comm c, MPI_Status* s),
                  (x, n, t, to, tag, y, m, u, from, tag_from, c, s))
HEDDLE_TEST_OPENS(Wait, (MPI_Request * r, MPI_Status* s), (r, s))
HEDDLE_TEST_OPENS(Test, (MPI_Request * r, int* done, MPI_Status* s), (r, done, s))
HEDDLE_TEST_OPENS(Request_get_status, (MPI_Request r, int* done, MPI_Status* s), (r, done, s))
HEDDLE_TEST_OPENS(Bcast, (void* x, int n, MPI_Datatype t, int root, MPI_Comm c), (x, n, t, root, c))
HEDDLE_TEST_OPENS(Allreduce, (const void* x, void* y, int n, MPI_Datatype t, MPI_Op f, MPI_Comm c), (x, y, n, t, f, c))
HEDDLE_TEST_OPENS(Reduce, (const void* x, void* y, int n, MPI_Datatype t, MPI_Op f, int root, MPI_Comm c),
                  (x, y, n, t, f, root, c))
HEDDLE_TEST_OPENS(Reduce_scatter_block, (const void* x, void* y, int n, MPI_Datatype t, MPI_Op f, MPI_Comm c),
                  (x, y, n, t, f, c))
HEDDLE_TEST_OPENS(Reduce_scatter, (const void* x, void* y, const int* n, MPI_Datatype t, MPI_Op f, MPI_Comm c),
                  (x, y, n, t, f, c))
HEDDLE_TEST_OPENS(Allgather, (const void* x, int n, MPI_Datatype t, void* y, int m, MPI_Datatype u, MPI_Comm c),
                  (x, n, t, y, m, u, c))
HEDDLE_TEST_OPENS(Allgatherv,
                  (const void* x, int n, MPI_Datatype t, void* y, const int* m, const int* at, MPI_Datatype u,
                   MPI_Comm c),
                  (x, n, t, y, m, at, u, c))
HEDDLE_TEST_OPENS(Alltoall, (const void* x, int n, MPI_Datatype t, void* y, int m, MPI_Datatype u, MPI_Comm c),
                  (x, n, t, y, m, u, c))
HEDDLE_TEST_OPENS(Alltoallv,
                  (const void* x, const int* n, const int* from, MPI_Datatype t, void* y, const int* m, const int* at,
                   MPI_Datatype u, MPI_Comm c),
                  (x, n, from, t, y, m, at, u, c))
#undef HEDDLE_TEST_OPENS

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

struct farther_from_zero {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  double operator()(double a, double b) const { return std::abs(b) > std::abs(a) ? b : a; }
};

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

  // Reductions that MPI cannot do in the memory of a device: of an output inside of the input, and by operators that are not MPI's.
  template <class World>
  void run_on_host(World& world) {
    auto& all = world.all();
    const auto whole = [&](int rows) {
      return tensor(hd::layout<mesh, hd::varying<dp, tp>>{world.mesh()}, rows, 3, world.rank());
    };
    auto in_place = whole(all.size() * (all.size() + 1) / 2 * world.mesh().size());
    std::vector<std::int64_t> counts(static_cast<std::size_t>(all.size()));
    std::iota(counts.begin(), counts.end(), 1);
    for (std::int64_t& n : counts) n *= 3;
    const int r = world.rank();
    const auto x = in_place.memory();
    hd::reduce_scatter_v(queue, all, hd::row_at<Space>(x.address(), 3 * all.size() * (all.size() + 1) / 2),
                         hd::row_at<Space>(x.address() + 3 * r * (r + 1) / 2, 3 * (r + 1)), counts, hd::plus{});
    note(in_place);
    auto largest = whole(2 * world.mesh().size());
    hd::all_reduce(queue, all, largest.memory(), hd::maximum{});
    note(largest);
    // Of two rows, by an operator of the user's.
    const auto from = whole(world.mesh().size() * all.size());
    auto to = whole(world.mesh().size()), block = whole(world.mesh().size());
    hd::reduce_scatter(queue, all, from.memory(), block.memory(), farther_from_zero{});
    hd::all_reduce(queue, all, block.memory(), to.memory(), farther_from_zero{});
    note(block);
    note(to);
    with_host += copied();
  }

  // As when counts are too large for a call of MPI's: blocks become messages and broadcasts.
  template <class World>
  void run_beyond_counts(World& world) {
    auto& all = world.all();
    const auto whole = [&](int rows) {
      return tensor(hd::layout<mesh, hd::varying<dp, tp>>{world.mesh()}, rows, 3, world.rank());
    };
    const int n = world.mesh().size();
    const auto from = whole(n * n), own = whole(n);
    auto to = whole(n * n), gathered = whole(n * n);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), own.memory().size());
    all.count_limit_for_tests(2);
    hd::all_to_all_v(queue, all, from.memory(), counts, to.memory(), counts);
    hd::all_gather_v(queue, all, own.memory(), gathered.memory(), counts);
    note(to);
    note(gathered);
    with_host += copied();
  }
};

enum class work { ordinary, on_host, beyond_counts };
template <class Space>
std::pair<std::vector<double>, std::int64_t> outcome(const mesh& m, hd::device_messages how, std::int64_t rows,
                                                     work what = work::ordinary) {
  std::vector<std::vector<double>> results(static_cast<std::size_t>(m.size()));
  std::vector<std::int64_t> bytes(results.size(), 0);
  transport_test::launch(m, with(how), [&](auto& world) {
    trial<Space> t;
    if (what == work::ordinary) t.run(world, rows, 6);
    if (what == work::on_host) t.run_on_host(world);
    if (what == work::beyond_counts) t.run_beyond_counts(world);
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

TEST_CASE("memory that MPI is given is closed to the host outside of MPI's calls", "[mpi][device]") {
  opened::queue taken;
  locked::queue kept;
  hd::buffer<double, opened> x(taken, 3);
  hd::buffer<double, locked> y(kept, 3);
  const double here = 1;
  CHECK(tensor_test::host_can_read(&here));
  CHECK_FALSE(tensor_test::host_can_read(x.address()));
  CHECK_FALSE(tensor_test::host_can_read(y.address()));
  {
    const tensor_test::transport_call call;
    CHECK(tensor_test::host_can_read(x.address()));
    CHECK_FALSE(tensor_test::host_can_read(y.address()));
  }
  CHECK_FALSE(tensor_test::host_can_read(x.address()));
}

TEST_CASE("reductions whose operands the host must read go by copies although MPI takes addresses", "[mpi][device]") {
  for (const mesh& m : meshes()) {
    CAPTURE(to_string(m));
    const auto expected = outcome<hd::host_memory>(m, hd::device_messages::automatic, 0, work::on_host).first;
    const auto [got, bytes] = outcome<opened>(m, hd::device_messages::direct, 0, work::on_host);
    CHECK(got == expected);
    CHECK(bytes == outcome<opened>(m, hd::device_messages::staged, 0, work::on_host).second);
    CHECK(bytes > 0);
  }
}

TEST_CASE("blocks beyond what MPI counts are not touched by the host", "[mpi][device]") {
  for (const mesh& m : meshes()) {
    CAPTURE(to_string(m));
    const auto expected = outcome<hd::host_memory>(m, hd::device_messages::automatic, 0, work::beyond_counts).first;
    const auto [got, bytes] = outcome<opened>(m, hd::device_messages::direct, 0, work::beyond_counts);
    CHECK(got == expected);
    CHECK(bytes == 0);
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

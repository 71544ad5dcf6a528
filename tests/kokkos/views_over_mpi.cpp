// tests/kokkos/views_over_mpi.cpp: a program's own Views under layouts, redistributed by processes of MPI, and by threads of such a
// process in the same program: the elements of the whole tensor, wherever they come to lie. On Threads, too, where ranks are processes.
#include "../catch_session.hpp"
#include "catch.hpp"
#include "space.hpp"
#include "transport.hpp"

#include <heddle/comm/mpi.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/view.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
using hd::dp, hd::tp, hd::shard;
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using memory = hd::kokkos_memory<tested_space>;
using by_both = hd::layout<mesh, shard<0, dp>, shard<1, tp>>;
using turned = hd::layout<mesh, shard<0, tp>, shard<1, dp>>;
using dealt = hd::layout<mesh, shard<1, hd::split::block_cyclic<2>, tp>>;
using copies = hd::layout<mesh>;
using sums = hd::layout<mesh, hd::partial<hd::plus, dp>, shard<0, tp>>;
using parts_of_sums = hd::layout<mesh, shard<1, dp>>;

// Meshes of as many ranks as there are processes.
std::vector<mesh> meshes() {
  std::vector<mesh> all;
  for (int d = 1; d <= transport_test::most_ranks(); ++d)
    if (transport_test::most_ranks() % d == 0) all.push_back(mesh{d, transport_test::most_ranks() / d});
  return all;
}

// Whole numbers, and so small that sums of them are exact in float.
template <class T>
KOKKOS_INLINE_FUNCTION T element(std::int64_t i, std::int64_t j) {
  return static_cast<T>(100 * i + j);
}

template <class T>
struct fill {
  Kokkos::View<T**, Kokkos::LayoutRight, tested_space> x;
  std::int64_t row, column;
  T times;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(x.extent(1)); ++j)
      x(i, j) = times * element<T>(row + i, column + j);
  }
};

// This rank's part, in a View of the program's own that a kernel of its own fills; the tensor has that View's memory.
template <class T, class Layout>
auto views_under(const Layout& how, memory::queue& queue, hd::shape<hd::dynamic, hd::dynamic> whole, int rank,
                 T times) {
  const auto [rows, columns] = how.local_shape(whole, rank).extents();
  const auto [row, column] = how.local_offset(whole, rank);
  // Before Kokkos 3.7 only the thread that initialized Kokkos initializes Views on OpenMP.
  const Kokkos::View<T**, Kokkos::LayoutRight, tested_space> view(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "part of a rank"), static_cast<std::size_t>(rows),
      static_cast<std::size_t>(columns));
  Kokkos::parallel_for("fill",
                       Kokkos::RangePolicy<tested_space, Kokkos::IndexType<std::int64_t>>(queue.instance(), 0, rows),
                       fill<T>{view, row, column, times});
  return hd::sharded<T, 2, Layout, memory>(how, whole, rank, hd::buffer_of_view(queue, view));
}

// How many elements of this rank's View are not those of the whole; -1000 for a View of another shape.
template <class T, class Layout>
int wrong_in(const hd::sharded<T, 2, Layout, memory>& x, memory::queue& queue, T times) {
  queue.wait();
  const auto view = hd::to_kokkos(x.local());
  const auto [row, column] = x.local_offset();
  const auto [rows, columns] = x.valid_shape().extents();
  if (view.extent(0) != static_cast<std::size_t>(rows) || view.extent(1) != static_cast<std::size_t>(columns))
    return -1000;
  int wrong = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) wrong += view(i, j) != times * element<T>(row + i, column + j);
  return wrong;
}

struct outcome {
  std::vector<int> wrong{};
  std::vector<double> numbers{};  // all that the rank had, in order
};

// A tensor from layout to layout on one rank of any transport.
template <class T, class World>
outcome round_trip(World& world, std::int64_t rows, std::int64_t columns) {
  const mesh m = world.mesh();
  const hd::shape<hd::dynamic, hd::dynamic> whole(rows, columns);
  memory::queue queue;  // an instance for each rank
  outcome o;
  const auto note = [&](const auto& x) {
    std::vector<T> values(static_cast<std::size_t>(x.memory().size()));
    queue.copy(x.memory(), values);
    queue.wait();
    o.numbers.insert(o.numbers.end(), values.begin(), values.end());
  };
  const auto checked = [&](const auto& x, T times) {
    note(x);
    o.wrong.push_back(wrong_in(x, queue, times));
  };
  const auto start = views_under<T>(by_both{m}, queue, whole, world.rank(), T(1));
  const auto other = hd::redistribute<turned>(start, world, queue);
  checked(other, T(1));
  const auto cards = hd::redistribute<dealt>(other, world, queue);
  note(cards);
  checked(hd::redistribute<by_both>(cards, world, queue), T(1));
  checked(hd::redistribute<copies>(cards, world, queue), T(1));
  // Each rank along dp adds one more time the whole than the one before it.
  const int ranks = m.extents()[0];
  const auto factor = static_cast<T>(1 + m.coordinates(world.rank())[0]);
  const auto added = views_under<T>(sums{m}, queue, whole, world.rank(), factor);
  checked(hd::redistribute<parts_of_sums>(added, world, queue), static_cast<T>(ranks * (ranks + 1) / 2));
  checked(start, T(1));  // what was sent is as it was
  return o;
}

constexpr std::size_t checks = 5;

hd::launch_options patient() {
  hd::launch_options o;
  o.timeout = std::chrono::milliseconds(30'000);
  return o;
}

}  // namespace

TEMPLATE_TEST_CASE("Views are redistributed by processes of MPI", "[kokkos][mpi]", double, float) {
  for (const mesh& m : meshes())
    for (const auto& [rows, columns] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{13, 6}, {1, 9}, {40, 1}, {0, 3}}) {
      CAPTURE(to_string(m), rows, columns);
      std::vector<std::vector<int>> wrong(static_cast<std::size_t>(m.size()));
      transport_test::launch(m, patient(), [&, size = std::pair(rows, columns)](auto& world) {
        wrong[static_cast<std::size_t>(world.rank())] = round_trip<TestType>(world, size.first, size.second).wrong;
      });
      transport_test::share(wrong);
      for (const auto& of_rank : wrong) CHECK(of_rank == std::vector<int>(checks, 0));
    }
}

TEST_CASE("Views go over two transports of one program at once", "[kokkos][mpi]") {
  if (!ranks_can_be_threads) return;  // on Threads ranks are processes
  const mesh of_threads{2, 2};
  std::vector<std::vector<int>> wrong(static_cast<std::size_t>(transport_test::most_ranks()));
  transport_test::launch(mesh{transport_test::most_ranks(), 1}, patient(), [&](auto& world) {
    std::vector<int>& mine = wrong[static_cast<std::size_t>(world.rank())];
    // This process' rank of MPI holds a tensor while four threads of the process redistribute one of their own.
    memory::queue queue;
    const hd::shape<hd::dynamic, hd::dynamic> whole(11, 7);
    const auto held = views_under<double>(by_both{world.mesh()}, queue, whole, world.rank(), 2.0);
    std::vector<outcome> of_thread(4);
    hd::launch<hd::threads>(of_threads, patient(), [&](auto& inner) {
      of_thread[static_cast<std::size_t>(inner.rank())] = round_trip<double>(inner, 13, 6);
    });
    for (const outcome& o : of_thread) mine.insert(mine.end(), o.wrong.begin(), o.wrong.end());
    mine.push_back(wrong_in(hd::redistribute<turned>(held, world, queue), queue, 2.0));
  });
  transport_test::share(wrong);
  for (const auto& of_rank : wrong) CHECK(of_rank == std::vector<int>(4 * checks + 1, 0));
  // And both give a rank of the same mesh the same bits.
  for (const mesh& m : meshes()) {
    CAPTURE(to_string(m));
    std::vector<std::vector<double>> by_threads(static_cast<std::size_t>(m.size())), by_mpi(by_threads);
    hd::launch<hd::threads>(m, patient(), [&](auto& world) {
      by_threads[static_cast<std::size_t>(world.rank())] = round_trip<double>(world, 13, 6).numbers;
    });
    transport_test::launch(m, patient(), [&](auto& world) {
      by_mpi[static_cast<std::size_t>(world.rank())] = round_trip<double>(world, 13, 6).numbers;
    });
    transport_test::share(by_mpi);
    CHECK(by_mpi[0].size() > 100);
    CHECK(by_mpi == by_threads);
  }
}

// Every process runs all of them, the first one reports. Kokkos ends before MPI does.
int main(int argc, char** argv) {
  const hd::mpi_session session(argc, argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  if (transport_test::process() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) return 2;
  int failed = Catch::Session().run(argc, argv), any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return any;
}

// A program's own Kokkos Views under layouts: each rank has some rows of a matrix in a View, sums along them by a kernel of its own,
// has heddle bring the matrix to columns, and sums along those: the sums of all rectangles from a corner (a summed-area table).
// run: --rows 23 --columns 17
// prints: 4 ranks, 23 x 17 elements
// prints: rank 0 has 6 of 23 rows, then 5 of 17 columns
// prints: the View's memory was used where it was: yes
// prints: every rectangle has its sum: yes
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/kokkos/view.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

namespace hd = heddle;

namespace {

struct part {};
using mesh = hd::mesh<hd::axis<part, 4>>;
using by_rows = hd::layout<mesh, hd::shard<0, part>>;
using by_columns = hd::layout<mesh, hd::shard<1, part>>;
using space = Kokkos::DefaultHostExecutionSpace;
using memory = hd::kokkos_memory<space>;
using matrix = Kokkos::View<double**, Kokkos::LayoutRight, space>;
using local_matrix = hd::kokkos_view<double, hd::dynamic_shape<2>, memory>;

// Element (i, j) of the whole matrix, and the sum of all (a, b) with a <= i and b <= j.
KOKKOS_INLINE_FUNCTION double element(std::int64_t i, std::int64_t j) {
  return static_cast<double>(3 * i + j);
}
double rectangle(std::int64_t i, std::int64_t j) {
  const auto rows = static_cast<double>(i + 1), columns = static_cast<double>(j + 1);
  return rows * columns * (3 * static_cast<double>(i) + static_cast<double>(j)) / 2;
}

// The program's kernels, on Views as it has them everywhere.
struct fill {
  matrix x;
  std::int64_t first_row;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(x.extent(1)); ++j) x(i, j) = element(first_row + i, j);
  }
};
struct sum_along_row {
  matrix x;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    for (std::int64_t j = 1; j < static_cast<std::int64_t>(x.extent(1)); ++j) x(i, j) += x(i, j - 1);
  }
};
struct sum_along_column {
  local_matrix x;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t j) const {
    for (std::int64_t i = 1; i < static_cast<std::int64_t>(x.extent(0)); ++i) x(i, j) += x(i - 1, j);
  }
};

struct outcome {
  hd::dynamic_shape<2> rows{0, 0}, columns{0, 0};
  int elsewhere = 0, wrong = 0;
};

outcome run(std::int64_t rows, std::int64_t columns) {
  outcome found;
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    memory::queue queue;  // an instance of the execution space for each rank
    using on_instance = Kokkos::RangePolicy<space, Kokkos::IndexType<std::int64_t>>;
    const hd::shape whole(rows, columns);
    const by_rows how{};
    const auto mine = how.local_shape(whole, world.rank());
    const auto first = how.local_offset(whole, world.rank())[0];

    // Not initialized, which on OpenMP before Kokkos 3.7 only the thread that initialized Kokkos can.
    matrix x(Kokkos::view_alloc(Kokkos::WithoutInitializing, "the program's rows"),
             static_cast<std::size_t>(mine.extent(0)), static_cast<std::size_t>(mine.extent(1)));
    Kokkos::parallel_for("fill", on_instance(queue.instance(), 0, mine.extent(0)), fill{x, first});
    Kokkos::parallel_for("rows", on_instance(queue.instance(), 0, mine.extent(0)), sum_along_row{x});

    // The View is this rank's part of a tensor, and in memory of the same space that tensor comes back as columns.
    hd::sharded<double, 2, by_rows, memory> tensor(how, whole, world.rank(), hd::buffer_of_view(queue, x));
    int elsewhere = tensor.memory().address() != x.data() && mine.size() > 0;
    auto turned = hd::redistribute<by_columns>(tensor, world, queue);
    const local_matrix y = hd::to_kokkos(turned.local());
    const std::int64_t across = turned.local().extent(1);
    Kokkos::parallel_for("columns", on_instance(queue.instance(), 0, across), sum_along_column{y});
    queue.wait();

    int wrong = 0;
    const auto at = turned.local_offset();
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < across; ++j) wrong += y(i, j) != rectangle(i, at[1] + j);
    world.all().all_reduce(wrong, hd::plus{});
    world.all().all_reduce(elsewhere, hd::plus{});
    if (world.rank() == 0) found = {mine, turned.local_shape(), elsewhere, wrong};
  });
  return found;
}

}  // namespace

int main(int argc, char** argv) try {
  const Kokkos::ScopeGuard kokkos(argc, argv);  // before all tensors, so that it ends behind them
  std::int64_t rows = 64, columns = 48;
  for (int a = 1; a + 1 < argc; a += 2)
    (std::string_view(argv[a]) == "--rows" ? rows : columns) = std::atoll(argv[a + 1]);
  const outcome found = run(rows, columns);
  std::printf("%d ranks, %lld x %lld elements\n", mesh{}.size(), static_cast<long long>(rows),
              static_cast<long long>(columns));
  std::printf("rank 0 has %lld of %lld rows, then %lld of %lld columns\n", static_cast<long long>(found.rows.extent(0)),
              static_cast<long long>(rows), static_cast<long long>(found.columns.extent(1)),
              static_cast<long long>(columns));
  std::printf("the View's memory was used where it was: %s\n", found.elsewhere == 0 ? "yes" : "no");
  std::printf("every rectangle has its sum: %s\n", found.wrong == 0 ? "yes" : "no");
  return found.elsewhere == 0 && found.wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return EXIT_FAILURE;
}

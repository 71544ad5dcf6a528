// A matrix of floats redistributed from rows to columns over ranks that are threads: its parts in Kokkos Views against the same in buffers of the
// host. Both alternate in stretches of about 8 ms, each after a call that is not measured, as each finds the caches full of the other's memory; each line has medians of the slowest rank's microseconds, the median of the ratios of
// neighbouring stretches (Views over buffers), the ratio of the fastest ones, and that of buffers against themselves.
//   kokkos_redistribute_bench <ranks> <rounds> <rows and columns>...
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/kokkos/view.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;

namespace {

struct part {};
using mesh = hd::mesh<hd::axis<part>>;
using by_rows = hd::layout<mesh, hd::shard<0, part>>;
using by_columns = hd::layout<mesh, hd::shard<1, part>>;
using space = Kokkos::DefaultHostExecutionSpace;
using memory = hd::kokkos_memory<space>;

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}
double fastest(const std::vector<double>& x) {
  return *std::min_element(x.begin(), x.end());
}

// Microseconds of one call, of the slowest rank.
template <class World, class Work>
double microseconds(World& world, int times, Work&& work) {
  work();
  world.all().barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  double mine = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / times;
  world.all().all_reduce(mine, hd::maximum{});
  return mine;
}

template <class World>
bool compare(World& world, int rounds, std::int64_t n) {
  const by_rows rows{world.mesh()};
  const hd::shape size(n, n);
  memory::queue queue;
  hd::sharded<float, 2, by_rows> buffers(rows, size, world.rank());
  const std::size_t elements = buffers.elements().size();
  for (std::size_t i = 0; i < elements; ++i)
    buffers.elements()[i] = static_cast<float>(world.rank() * 1000) + static_cast<float>(i % 997);
  Kokkos::View<float**, Kokkos::LayoutRight, space> view(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "rows of this rank"),
      static_cast<std::size_t>(buffers.local().extent(0)), static_cast<std::size_t>(n));
  std::copy_n(buffers.elements().begin(), elements, view.data());
  hd::sharded<float, 2, by_rows, memory> views(rows, size, world.rank(), hd::buffer_of_view(queue, view));
  hd::host_memory::queue at_once;
  const auto of_buffers = [&] { return hd::redistribute<by_columns>(buffers, world, at_once); };
  const auto of_views = [&] {
    auto columns = hd::redistribute<by_columns>(views, world, queue);
    queue.wait();
    return columns;
  };
  const auto expected = of_buffers();
  const auto got = of_views();
  int same = std::equal(expected.elements().begin(), expected.elements().end(), got.elements().begin()) ? 1 : 0;
  world.all().all_reduce(same, hd::minimum{});
  int times = static_cast<int>(std::clamp(8e3 / (1 + microseconds(world, 5, of_buffers)), 1.0, 2000.0));
  world.all().all_reduce(times, hd::maximum{});
  const auto views_us = [&] { return microseconds(world, times, of_views); };
  const auto buffers_us = [&] { return microseconds(world, times, of_buffers); };
  std::vector<double> ours, theirs, ratios, of_itself;
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) ours.push_back(views_us());
    theirs.push_back(buffers_us());
    if (round % 2 != 0) ours.push_back(views_us());
    ratios.push_back(ours.back() / theirs.back());
  }
  for (int round = 0; round < rounds; ++round) {
    const double first = buffers_us(), second = buffers_us();
    of_itself.push_back(round % 2 == 0 ? first / second : second / first);
  }
  if (world.rank() == 0)
    std::printf("%6lld x %-6lld %12.1f %12.1f %8.3f %8.3f %10.3f%s\n", static_cast<long long>(n),
                static_cast<long long>(n), median(theirs), median(ours), median(ratios),
                fastest(ours) / fastest(theirs), median(of_itself), same != 0 ? "" : "  WRONG VALUES");
  return same != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  if (argc < 4) {
    std::fputs("usage: kokkos_redistribute_bench <ranks> <rounds> <rows and columns>...\n", stderr);
    return 2;
  }
  bool same = true;
  hd::launch_options options;
  options.check = hd::checking::off;
  hd::launch<hd::threads>(mesh{std::atoi(argv[1])}, options, [&](auto& world) {
    if (world.rank() == 0)
      std::printf("%d ranks, Kokkos %d, %s\n%-15s %12s %12s %8s %8s %10s\n", world.size(), KOKKOS_VERSION,
                  space::name(), "matrix", "buffers us", "Views us", "ratio", "fastest", "itself");
    for (int a = 3; a < argc; ++a) {
      const bool right = compare(world, std::atoi(argv[2]), std::atoll(argv[a]));
      if (world.rank() == 0) same = same && right;
    }
  });
  return same ? 0 : 1;
}

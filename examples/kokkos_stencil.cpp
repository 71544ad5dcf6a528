// Heat on a plate by a five-point stencil: the plate lies on a grid of ranks as a layout with halos, which are exchanged before
// each step, and each rank computes its cells by a Kokkos kernel on views of its memory. Ranks are threads, or processes
// (kokkos_stencil_mpi).
//   kokkos_stencil [--size <rows>x<columns>] [--steps <n>] [--ranks <rows>x<columns>] [--check]
// `--check` computes all again on one rank and compares bit by bit.
// run: --size 61x47 --steps 200 --ranks 2x2 --check
// mpi: 4
// prints: 200 steps of 61 x 47 cells on 2 x 2 ranks
// prints: halos: 1760 bytes a step, as the formula says
// prints: one rank has the same bits: yes
// prints: off the exact solution by less than 1e-12: yes
#include <heddle/tensor/halo_exchange.hpp>
#include <heddle/tensor/kokkos/view.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "transport.hpp"

namespace hd = heddle;

namespace {

struct rows {};
struct columns {};
using mesh = hd::mesh<hd::axis<rows>, hd::axis<columns>>;
using cells = hd::layout<mesh, hd::halo<0, 1, rows>, hd::halo<1, 1, columns>>;
using blocks = hd::without_halo<cells>;
using plate = hd::sharded<double, 2, cells>;
using space = Kokkos::DefaultHostExecutionSpace;
using field = hd::kokkos_view<double, hd::dynamic_shape<2>>;
using column = hd::kokkos_view<double, hd::dynamic_shape<1>>;

struct problem {
  std::int64_t size[2] = {64, 64};
  int steps = 100;
  int ranks[2] = {2, 2};
  bool check = false;
};

constexpr double conduction =
    0.2;  // time step times conductivity, over the square of the spacing: at most 0.25 is stable

// The slowest mode: zero along the edges, which stay as they are.
double first_mode(const problem& p, std::int64_t i, std::int64_t j) {
  const double pi = std::acos(-1.0);
  return std::sin(pi * static_cast<double>(i) / static_cast<double>(p.size[0] - 1)) *
         std::sin(pi * static_cast<double>(j) / static_cast<double>(p.size[1] - 1));
}
// What a step multiplies it by.
double decay(const problem& p) {
  const double pi = std::acos(-1.0);
  const auto half = [&](int d) { return std::sin(pi / 2 / static_cast<double>(p.size[d] - 1)); };
  return 1 - 4 * conduction * (half(0) * half(0) + half(1) * half(1));
}

// One step of the rows that a rank owns, and the largest change in each.
struct heat_step {
  field now, next;
  column change;
  std::int64_t first_column, last_column;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    double most = 0;
    for (std::int64_t j = first_column; j < last_column; ++j) {
      const double here = now(i, j);
      const double by = conduction * (((now(i - 1, j) + now(i + 1, j)) + (now(i, j - 1) + now(i, j + 1))) - 4 * here);
      next(i, j) = here + by;
      most = by > most ? by : -by > most ? -by : most;
    }
    change(i) = most;
  }
};

struct outcome {
  std::vector<double> whole{};  // all cells, on every rank
  double change = 0;            // the largest in the last step
  std::int64_t bytes = 0;       // that all ranks send to each other before a step
};

outcome solve(const problem& p, int row_ranks, int column_ranks) {
  outcome found;
  hd::launch<hd::threads>(mesh{row_ranks, column_ranks}, [&](auto& world) {
    const hd::shape size(p.size[0], p.size[1]);
    const cells layout{world.mesh()};
    plate now(layout, size, world.rank()), next(layout, size, world.rank());
    for (std::int64_t i = 0; i < now.local().extent(0); ++i)
      for (std::int64_t j = 0; j < now.local().extent(1); ++j)
        now.local()(i, j) = first_mode(p, now.local_offset()[0] + i, now.local_offset()[1] + j);

    // The cells that this rank computes: its own, less the edges of the plate; as places in its memory.
    std::array<std::int64_t, 2> first{}, last{};
    const blocks own{world.mesh()};
    for (std::size_t d = 0; d < 2; ++d) {
      const std::int64_t begin = own.local_offset(size, world.rank())[d],
                         end = begin + own.local_shape(size, world.rank()).extent(d);
      first[d] = std::max<std::int64_t>(begin, 1) - now.local_offset()[d];
      last[d] = std::max(std::min(end, size.extent(d) - 1) - now.local_offset()[d], first[d]);
    }
    hd::kokkos_memory<space>::queue queue;
    hd::buffer<double> change(now.local().extent(0));
    hd::halo_exchange refresh(now, world);
    double most = 0;
    for (int step = 0; step < p.steps; ++step) {
      refresh(now);
      Kokkos::parallel_for(
          Kokkos::RangePolicy<space, Kokkos::IndexType<std::int64_t>>(queue.instance(), first[0], last[0]),
          heat_step{hd::to_kokkos(now.local()), hd::to_kokkos(next.local()), hd::to_kokkos(change.view()), first[1],
                    last[1]});
      queue.wait();
      most = 0;
      for (std::int64_t i = first[0]; i < last[0]; ++i) most = std::max(most, change.data()[i]);
      world.all().all_reduce(most, hd::maximum{});
      std::swap(now, next);
    }
    std::int64_t bytes = refresh.bytes_sent();
    world.all().all_reduce(bytes, hd::plus{});
    const auto all = hd::redistribute<hd::layout<mesh>>(std::move(now), world);
    if (on::keeps(world.rank())) found = {{all.elements().begin(), all.elements().end()}, most, bytes};
  });
  return found;
}

template <class Number>
void read_pair(std::string_view text, Number (&to)[2]) {
  char* end = nullptr;
  to[0] = static_cast<Number>(std::strtol(text.data(), &end, 10));
  if (*end != 'x') throw std::invalid_argument("a pair of numbers is written 2x3");
  to[1] = static_cast<Number>(std::strtol(end + 1, nullptr, 10));
}

problem read(int argc, char** argv) {
  problem p;
  for (int a = 1; a < argc; ++a) {
    const std::string_view name = argv[a];
    if (name == "--check")
      p.check = true;
    else if (a + 1 == argc)
      throw std::invalid_argument("an option lacks its value");
    else if (name == "--size")
      read_pair(argv[++a], p.size);
    else if (name == "--ranks")
      read_pair(argv[++a], p.ranks);
    else if (name == "--steps")
      p.steps = std::atoi(argv[++a]);
    else
      throw std::invalid_argument("the options are --size, --steps, --ranks and --check");
  }
  if (p.size[0] < 3 || p.size[1] < 3) throw std::invalid_argument("a plate has at least 3 x 3 cells");
  return p;
}

}  // namespace

int main(int argc, char** argv) try {
  on::begin(argc, argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const problem p = read(argc, argv);
  const outcome found = solve(p, p.ranks[0], p.ranks[1]);
  std::printf("%d steps of %lld x %lld cells on %d x %d ranks, last change %.3e\n", p.steps,
              static_cast<long long>(p.size[0]), static_cast<long long>(p.size[1]), p.ranks[0], p.ranks[1],
              found.change);
  // On either side of each cut a line of cells travels, and four corners where two cuts cross. Empty blocks have no cuts.
  const std::int64_t across = std::min<std::int64_t>(p.ranks[0], p.size[0]) - 1,
                     along = std::min<std::int64_t>(p.ranks[1], p.size[1]) - 1;
  const std::int64_t formula = 8 * (2 * across * p.size[1] + 2 * along * p.size[0] + 4 * across * along);
  std::printf("halos: %lld bytes a step, %s\n", static_cast<long long>(found.bytes),
              found.bytes == formula ? "as the formula says" : "and not as the formula says");
  double off = 0;
  for (std::size_t at = 0; at < found.whole.size(); ++at) {
    const auto i = static_cast<std::int64_t>(at) / p.size[1], j = static_cast<std::int64_t>(at) % p.size[1];
    off = std::max(off, std::abs(found.whole[at] - std::pow(decay(p), p.steps) * first_mode(p, i, j)));
  }
  std::printf("off the exact solution by less than 1e-12: %s\n", off < 1e-12 ? "yes" : "no");
  bool same = true;
  if (p.check) {
    const outcome one = solve(p, 1, 1);
    same = one.whole == found.whole && one.change == found.change;
    std::printf("one rank has the same bits: %s\n", same ? "yes" : "no");
  }
  return same && off < 1e-12 && found.bytes == formula ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}

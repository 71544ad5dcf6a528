// Heat on a rod that two ranks share: a Kokkos kernel on the memory of a layout with halos (docs/from/kokkos.md).
// run:
// mpi: 2
// prints: after 100 steps the middle has 0.741
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/halo_exchange.hpp>
#include <heddle/tensor/kokkos/view.hpp>
#include <heddle/tensor/random.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <cstdio>
#include <utility>

namespace hd = heddle;
struct parts {};
using mesh = hd::mesh<hd::axis<parts, 2>>;
using cells = hd::layout<mesh, hd::halo<0, 1, parts>>;  // a block of the rod, and one cell on either side of it
using space = Kokkos::DefaultHostExecutionSpace;
using field = hd::kokkos_view<double, hd::dynamic_shape<1>>;

struct heat_step {
  field now, next;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    next(i) = now(i) + 0.25 * (now(i - 1) - 2 * now(i) + now(i + 1));
  }
};

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  return hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {
    const hd::shape length{std::int64_t{64}};
    hd::sharded<double, 1, cells> now({}, length, world.rank()), next({}, length, world.rank());
    const auto bump = [](auto i) { return i >= 24 && i < 40 ? 1.0 : 0.0; };
    hd::fill_by_index(now, bump), hd::fill_by_index(next, bump);

    hd::kokkos_memory<space>::queue queue;
    hd::halo_exchange refresh(now, world);
    const std::int64_t n = now.local().extent(0);
    for (int step = 0; step < 100; ++step) {
      refresh(now);
      Kokkos::parallel_for(Kokkos::RangePolicy<space, Kokkos::IndexType<std::int64_t>>(queue.instance(), 1, n - 1),
                           heat_step{hd::to_kokkos(now.local()), hd::to_kokkos(next.local())});
      queue.wait();
      std::swap(now, next);
    }
    if (world.rank() == 0) std::printf("after 100 steps the middle has %.3f\n", now.local()(31));
  });
}

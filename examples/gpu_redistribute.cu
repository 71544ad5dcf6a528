// Four ranks that are threads share a GPU, each with a stream: a matrix that is cut by rows is cut by columns, and its columns are summed, by kernels
// that read the memory of all ranks. Compiled by nvcc; where there is no GPU it says so and ends with 77.
#include <heddle/heddle.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace hd = heddle;
using hd::dp;
using mesh = hd::mesh<hd::axis<dp, 4>>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
using columns = hd::layout<mesh, hd::shard<1, dp>>;
using device = hd::cuda_memory;

int main() {
  const hd::shape whole{6, 10};
  std::vector<double> sums(10);
  bool same = true;
  try {
    hd::launch<hd::threads>(mesh{}, {}, [&](auto& world) {
      hd::sharded<double, 2, rows> x(rows{}, whole, world.rank());
      const auto at = x.local_offset(), size = x.valid_shape().extents();
      for (std::int64_t i = 0; i < size[0]; ++i)
        for (std::int64_t j = 0; j < size[1]; ++j) x.local()(i, j) = static_cast<double>(10 * (at[0] + i) + at[1] + j);

      device::queue queue;  // a stream of the device that all ranks use
      const auto there = hd::copy_to<device>(queue, x);
      const auto turned = hd::redistribute<columns>(there, world, queue);  // one kernel packs, one moves for all ranks
      const auto back = hd::redistribute<rows>(turned, world, queue);
      const auto here = hd::copy_to<hd::host_memory>(queue, turned);
      const auto again = hd::copy_to<hd::host_memory>(queue, back);

      // Each rank sums its columns; the others' sums come from their memory on the device.
      std::vector<double> own(sums.size());
      const auto first = here.local_offset(), held = here.valid_shape().extents();
      for (std::int64_t i = 0; i < held[0]; ++i)
        for (std::int64_t j = 0; j < held[1]; ++j) own[static_cast<std::size_t>(first[1] + j)] += here.local()(i, j);
      hd::buffer<double, device> total(queue, static_cast<std::int64_t>(own.size()), "sums of columns");
      queue.copy(own, total);
      hd::all_reduce(queue, world.all(), total, hd::plus{});
      queue.copy(total, own);
      queue.wait();

      std::vector<int> equal(4);
      const int mine = std::equal(x.elements().begin(), x.elements().end(), again.elements().begin()) ? 1 : 0;
      world.all().all_gather(std::vector<int>{mine}, equal);
      if (world.rank() != 0) return;
      for (const int e : equal) same = same && e == 1;
      sums = own;
    });
  } catch (const hd::config_error& e) {
    std::printf("%s\n", e.what());
    return 77;
  }
  std::printf("sums of columns:");
  for (const double s : sums) std::printf(" %g", s);
  std::printf("\nrows to columns and back: %s\n", same ? "the same" : "CHANGED");
  return same ? 0 : 1;
}

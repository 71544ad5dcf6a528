// A user's own reduction by CUB as the local part of one over all ranks: four ranks that share a GPU have rows of a matrix, CUB finds the greatest
// number and the sum of each rank's rows, on the rank's stream and in memory of its queue, and `redistribute` of the partial results makes them those
// of all rows. Compiled by nvcc; where there is no GPU it says so and ends with 77.
#include <heddle/heddle.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <cub/device/device_reduce.cuh>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace hd = heddle;
using hd::dp;
using mesh = hd::mesh<hd::axis<dp, 4>>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
template <class Op>
using partial = hd::layout<mesh, hd::partial<Op, dp>>;
using replicated = hd::layout<mesh>;
using device = hd::cuda_memory;

namespace {

void require(cudaError_t result) {
  if (result != cudaSuccess) throw hd::cuda_error(std::string("cub::DeviceReduce: ") + cudaGetErrorString(result));
}

// `reduce(room, bytes)` is a call of CUB, which first says how much memory it needs. That comes from the queue's pool, and goes back in its order.
template <class Reduce>
void with_room(device::queue& queue, Reduce reduce) {
  std::size_t bytes = 0;
  require(reduce(nullptr, bytes));
  hd::buffer<std::byte, device> room(queue, static_cast<std::int64_t>(bytes > 0 ? bytes : 1),
                                     "memory of a CUB reduction");
  require(reduce(room.address(), bytes));
}

// One number of all ranks' rows: `reduce(room, bytes, out)` puts this rank's into `out`.
template <class Op, class World, class Reduce>
double of_all_rows(World& world, device::queue& queue, Reduce reduce) {
  hd::sharded<double, 1, partial<Op>, device> own(queue, partial<Op>{}, hd::shape{1}, world.rank());
  double* const out = own.memory().address();
  with_room(queue, [&](void* room, std::size_t& bytes) { return reduce(room, bytes, out); });
  const auto all = hd::redistribute<replicated>(own, world, queue);  // an all_reduce with Op: the types say so
  const auto here = hd::copy_to<hd::host_memory>(queue, all);
  queue.wait();
  return here.elements()[0];
}

}  // namespace

int main() {
  double greatest = 0, sum = 0;
  try {
    hd::launch<hd::threads>(mesh{}, {}, [&](auto& world) {
      hd::sharded<double, 2, rows> x(rows{}, hd::shape{8, 10}, world.rank());
      const std::int64_t first = x.local_offset()[0], held = x.valid_shape().extents()[0];
      for (std::int64_t i = 0; i < held; ++i)
        for (std::int64_t j = 0; j < 10; ++j) x.local()(i, j) = static_cast<double>(10 * (first + i) + j);

      device::queue queue;  // a stream for each rank, of one device
      const auto there = hd::copy_to<device>(queue, x);
      const double* const in = there.memory().address();
      const std::int64_t n = there.memory().size();
      const double most = of_all_rows<hd::maximum>(world, queue, [&](void* room, std::size_t& bytes, double* out) {
        return cub::DeviceReduce::Max(room, bytes, in, out, n, queue.stream());
      });
      const double total = of_all_rows<hd::plus>(world, queue, [&](void* room, std::size_t& bytes, double* out) {
        return cub::DeviceReduce::Sum(room, bytes, in, out, n, queue.stream());
      });
      if (world.rank() != 0) return;
      greatest = most;
      sum = total;
    });
  } catch (const hd::config_error& e) {
    std::printf("%s\n", e.what());
    return 77;
  }
  std::printf("greatest: %g, sum: %g\n", greatest, sum);
  return greatest == 79 && sum == 3160 ? 0 : 1;
}

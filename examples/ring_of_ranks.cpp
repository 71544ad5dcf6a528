// A ring and a sum: what docs/from/mpi.md and docs/from/nccl.md write by MPI's and NCCL's own calls.
// run:
// mpi: 4
// prints: rank 0 has 3 of its left neighbour; the sum of all is 6, that of its row 1
#include <heddle/comm/threads.hpp>

#include <cstdio>
#include <span>
#include <vector>

namespace hd = heddle;
struct rows {};
struct columns {};
using grid = hd::mesh<hd::axis<rows, 2>, hd::axis<columns, 2>>;

int main(int argc, char** argv) {
  return hd::launch<hd::threads, grid>(argc, argv, [](auto& world) {
    auto& all = world.all();
    const int rank = all.rank(), size = all.size();
    std::vector<double> mine(1000, rank), theirs(1000), sum = mine, row = mine;

    auto incoming = all.irecv(std::span(theirs), (rank + size - 1) % size);
    all.send(std::span<const double>(mine), (rank + 1) % size);
    incoming.wait();

    all.all_reduce(sum, hd::plus{});
    world.template along<columns>().all_reduce(row, hd::plus{});
    if (rank == 0)
      std::printf("rank 0 has %g of its left neighbour; the sum of all is %g, that of its row %g\n", theirs[0], sum[0],
                  row[0]);
  });
}

// The first program of docs/start.md: four ranks add up a number along each axis of a mesh.
// run:
// mpi: 4
// prints: dp=2 x tp=2: the ranks of a row add up to 1, those of a column to 2, all to 6
#include <heddle/heddle.hpp>
#include <cstdio>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;  // 4 ranks: 0 1 in the first row, 2 3 in the second

int main(int argc, char** argv) {
  return hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {
    int row = world.rank(), column = world.rank(), all = world.rank();
    world.template along<tp>().all_reduce(row, hd::plus{});
    world.template along<dp>().all_reduce(column, hd::plus{});
    world.all().all_reduce(all, hd::plus{});
    if (world.rank() == 0)
      std::printf("%s: the ranks of a row add up to %d, those of a column to %d, all to %d\n",
                  to_string(mesh{}).c_str(), row, column, all);
  });
}

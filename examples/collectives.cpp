// Ranks that are threads: collectives along the axes of a mesh, messages, and what a mistake looks like.
// run:
// mpi: 6
// prints: all 6 ranks: 15, by row: 3 12
// prints: loss 7.50 of 6 ranks, verdict of dp: go on
// prints: started sum of 6 ranks: 15, 1 of rank 1
// prints: rank 0 got 2.5 from rank 5
// prints: ranks disagree about call 2 on communicator (dp,tp): rank 1 entered all_reduce of 2 int with maximum
// varies: rank [0-5]: heddle
#include <heddle/heddle.hpp>

#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;

int main(int argc, char** argv) {
  const int status = hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {
    // [collectives]
    int sum = world.rank();
    world.all().all_reduce(sum, hd::plus{});

    int row = world.rank();  // summed over the ranks that differ only in tp
    world.template along<tp>().all_reduce(row, hd::plus{});
    std::vector<int> rows(2);  // one from each rank along dp
    world.template along<dp>().all_gather(std::span(&row, 1), rows);
    // [collectives]
    if (world.rank() == 0) std::printf("all %d ranks: %d, by row: %d %d\n", world.size(), sum, rows[0], rows[1]);

    // [control]
    double loss = 0.5 * world.rank();  // what the host reads: in its memory, whatever carries the tensors
    world.control().all_reduce(loss, hd::plus{});
    std::string verdict = world.template coordinate<dp>() == 0 ? "go on" : "     ";
    world.template control_along<dp>().broadcast(std::span<char>(verdict), 0);
    // [control]
    if (world.rank() == 0) std::printf("loss %.2f of 6 ranks, verdict of dp: %s\n", loss, verdict.c_str());

    // [started]
    std::vector<int> gradients(1000, world.rank()), weights(6);
    auto adding = world.all().start_all_reduce(gradients, hd::plus{});
    const int shard = world.rank();
    auto fetching = world.all().start_all_gather(std::span(&shard, 1), weights);
    // ... the rank computes something else ...
    fetching.wait();  // in any order
    adding.wait();
    // [started]
    if (world.rank() == 0) std::printf("started sum of 6 ranks: %d, %d of rank 1\n", gradients[999], weights[1]);

    // [messages]
    auto& all = world.all();
    const double mine = 0.5 * world.rank();
    double theirs = 0;
    // Started first: a ring in which everyone sends before it receives would wait for ever.
    auto incoming = all.irecv(std::span(&theirs, 1), (all.rank() + 5) % 6);
    all.send(std::span(&mine, 1), (all.rank() + 1) % 6);
    incoming.wait();
    // [messages]
    if (world.rank() == 0) std::printf("rank 0 got %.1f from rank 5\n", theirs);
  });

  // [mistake]
  try {
    hd::launch<hd::threads, mesh>([](auto& world) {
      std::vector<int> x(2, world.rank());
      world.all().barrier();
      if (world.rank() == 1)
        world.all().all_reduce(x, hd::maximum{});
      else
        world.all().all_reduce(x, hd::plus{});
    });
  } catch (const hd::comm_error& e) {
    std::printf("%s\n", e.what());
  }
  // [mistake]
  return status;
}

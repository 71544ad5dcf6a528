// heddle_mpi <cluster>, under smpirun: heddle's MPI transport on virtual ranks gives the bits of a serial fold.
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/mpi.hpp>

#include "clusters.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

using hd::dp, hd::pp, hd::tp;

namespace {

// Rank r's contributions: sums of them depend on the order of adding.
float contribution(int rank, int i) {
  return 1.0f / static_cast<float>(1 + (rank * 7919 + i * 104729) % 1000);
}

template <class World>
int check(World& world) {
  const int rank = world.rank(), ranks = world.size(), n = 5 * ranks + 3;
  int wrong = 0;
  std::vector<float> mine(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) mine[static_cast<std::size_t>(i)] = contribution(rank, i);

  // Recursive doubling: the balanced tree over the ranks, a power of two.
  std::vector<float> sums(mine.size());
  hd::all_reduce<hd::algo::recursive_doubling>(world.all(), mine, sums, hd::plus{});
  for (int i = 0; i < n; ++i) {
    std::vector<float> tree;
    for (int r = 0; r < ranks; ++r) tree.push_back(contribution(r, i));
    for (; tree.size() > 1; tree.resize(tree.size() / 2))
      for (std::size_t k = 0; k < tree.size() / 2; ++k) tree[k] = tree[2 * k] + tree[2 * k + 1];
    wrong += sums[static_cast<std::size_t>(i)] != tree[0];
  }
  // Ring: chunk c is folded by ranks c + 1, c + 2, ..., c; the first chunks are one element longer.
  hd::all_reduce<hd::algo::ring>(world.all(), mine, sums, hd::plus{});
  for (int c = 0, begin = 0; c < ranks; ++c) {
    const int end = begin + n / ranks + (c < n % ranks);
    for (int i = begin; i < end; ++i) {
      float sum = contribution((c + 1) % ranks, i);
      for (int k = 2; k <= ranks; ++k) sum += contribution((c + k) % ranks, i);
      wrong += sums[static_cast<std::size_t>(i)] != sum;
    }
    begin = end;
  }
  // MPI's own calls along axes, on whole numbers.
  std::int64_t along = rank;
  world.template along<tp>().all_reduce(std::span(&along, 1), hd::plus{});
  std::int64_t expected = 0;
  for (const int r : hd::group<tp>(world.mesh(), rank)) expected += r;
  wrong += along != expected;
  std::vector<int> out(static_cast<std::size_t>(ranks)), in(out.size());
  for (int to = 0; to < ranks; ++to) out[static_cast<std::size_t>(to)] = rank * ranks + to;
  world.all().all_to_all(out, in);
  for (int from = 0; from < ranks; ++from) wrong += in[static_cast<std::size_t>(from)] != from * ranks + rank;
  // A ring of messages along the pipeline.
  auto& stages = world.template along<pp>();
  int came = -1;
  auto receive = stages.irecv(std::span(&came, 1), (stages.rank() + stages.size() - 1) % stages.size());
  stages.send(std::span(&rank, 1), (stages.rank() + 1) % stages.size());
  receive.wait();
  wrong += world.mesh().template coordinate<pp>(came) != (stages.rank() + stages.size() - 1) % stages.size();

  world.all().all_reduce(std::span(&wrong, 1), hd::plus{});
  if (rank == 0) std::printf("%d ranks, %d wrong\n", ranks, wrong);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  using mesh = hd::mesh<hd::axis<pp>, hd::axis<dp, 4>, hd::axis<tp, 8>>;
  int wrong = 0;
  const int status = hd::launch<hd::mpi>(mesh{named(argv[1]).ranks() / 32}, [&](auto& world) { wrong = check(world); });
  return status != 0 || wrong != 0 ? 1 : 0;
}

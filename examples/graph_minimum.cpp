// Each node of a graph is to tell the second smallest of its neighbours' numbers: learned where nodes have 2 to 8 of them, asked
// where they have 16. A layer's aggregator is a sum, a maximum, a recurrence or a learned operator; nodes lie on two ranks.
//   graph_minimum [steps] [seeds]
// run: 150 1
// prints: one rank and two give the same bits: yes
// prints: the learned operator is above sum and max at degree 16 with each seed: yes
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/recurrent_fold.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "graph_minimum/network.hpp"

namespace {
using namespace graph_minimum;

struct outcome {
  double small = 0, large = 0;
  std::vector<float> first;  // the layer's rows of the first nodes
};
template <class Op, template <class> class Fold = hd::dyadic_fold>
outcome train_and_test(const char* name, int ranks, int steps, std::uint64_t seed) {
  outcome found;
  hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
    network_of_nodes<Op, Fold, typename std::remove_reference_t<decltype(world)>::communicator> net(world.all(), seed);
    for (int k = 0; k < steps; ++k)
      net.run(draw_graph(2, 8, seed, static_cast<std::uint64_t>(k)), k < steps * 7 / 10 ? 3e-3 : 6e-4);
    outcome mine;
    for (std::uint64_t k = 0; k < 8; ++k) {
      mine.small += net.run(draw_graph(2, 8, seed + 100, k), 0) / 8;
      mine.large += net.run(draw_graph(16, 16, seed + 200, k), 0) / 8;
    }
    mine.first.assign(net.out.begin(), net.out.begin() + 64 * width);
    if (world.rank() == 0) found = mine;
  });
  if (steps > 0)
    std::printf("seed %d, %-16s all bits right: %3.0f %% of nodes with 2 to 8 edges, %3.0f %% of those with 16\n",
                static_cast<int>(seed), name, 100 * found.small, 100 * found.large);
  std::fflush(stdout);
  return found;
}
}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000, seeds = argc > 2 ? std::atoi(argv[2]) : 5;
  bool above = true;
  for (int seed = 1; seed <= seeds; ++seed) {
    const auto s = static_cast<std::uint64_t>(seed);
    const double sum = train_and_test<rows<true>>("sum", 2, steps, s).large;
    const double most = train_and_test<rows<false>>("max", 2, steps, s).large;
    train_and_test<md::one_order, md::recurrent_fold>("recurrence", 2, steps, s);
    const double learned = train_and_test<md::both_orders>("learned operator", 2, steps, s).large;
    above = above && learned > sum && learned > most;
  }
  const auto first = [](int ranks) { return train_and_test<md::both_orders>("", ranks, 0, 1).first; };
  std::printf("one rank and two give the same bits: %s\n", first(1) == first(2) ? "yes" : "no");
  std::printf("the learned operator is above sum and max at degree 16 with each seed: %s\n", above ? "yes" : "no");
}

// The second smallest number of a set, learned on sets of 2 to 8 and asked of sets of 16: the aggregator of the set is
// a sum, or an operator that is learned as well, over elements that lie on two ranks.
// run: 500
// mpi: 6 slow
// virtual: 66 4
// prints: the learned monoid beats the sum on larger sets: yes
// prints: the loss lowers the associativity defect: yes
// prints: one rank and three give the same bits: yes
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "second_minimum/network.hpp"
#include "transport.hpp"

using namespace second_minimum;

namespace {

constexpr std::int64_t width = 32;
constexpr std::uint64_t seed = 5;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;

struct outcome {
  double small = 0, large = 0, defect = 0;  // accuracies, and how far the operator is from associative
};

template <class Aggregator>
outcome train_and_test(const char* name, float lambda, int steps) {
  outcome found;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    network<Aggregator, typename std::remove_reference_t<decltype(world)>::communicator> net(world.all(), width, seed);
    for (int k = 0; k < steps; ++k)
      net.train(draw(64, 2, 8, 1, static_cast<std::uint64_t>(k)), lambda, k < steps * 7 / 10 ? 3e-3 : 6e-4);
    const outcome mine{net.accuracy(draw(512, 2, 8, 2, 0)), net.accuracy(draw(512, 16, 16, 3, 0)),
                       net.defect(draw(256, 3, 3, 4, 0))};
    if (on::keeps(world.rank())) found = mine;
  });
  std::printf("%-34s all four bits right: %3.0f %% of sets of 2 to 8, %3.0f %% of sets of 16", name, 100 * found.small,
              100 * found.large);
  if constexpr (std::is_same_v<Aggregator, by_learned_monoid>) std::printf("; defect %.3f", found.defect);
  std::printf("\n");
  return found;
}

// The value of a set on so many ranks.
std::vector<float> value(int ranks) {
  std::vector<float> root;
  const sets one = draw(1, 13, 13, 6, 0);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{ranks}, [&](auto& world) {
    network<by_learned_monoid, typename std::remove_reference_t<decltype(world)>::communicator> net(world.all(), width,
                                                                                                    seed);
    const std::vector<float> mine = net.aggregate(one);
    if (on::keeps(world.rank())) root = mine;
  });
  return root;
}

}  // namespace

int main(int argc, char** argv) {
  on::begin(argc, argv);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  const outcome sum = train_and_test<by_sum>("sum", 0, steps);
  const outcome learned = train_and_test<by_learned_monoid>("learned monoid", 0, steps);
  const outcome nearer = train_and_test<by_learned_monoid>("learned monoid, associativity 0.03", 0.03f, steps);
  const auto say = [](const char* what, bool so) { std::printf("%s: %s\n", what, so ? "yes" : "no"); };
  say("the learned monoid beats the sum on larger sets", learned.large > sum.large && nearer.large > sum.large);
  say("the loss lowers the associativity defect", nearer.defect < learned.defect);
  say("one rank and three give the same bits", value(1) == value(3));
}

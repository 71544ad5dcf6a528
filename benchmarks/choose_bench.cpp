// benchmarks/choose_bench.cpp: how long the cheapest of 36 signatures of each of 100 to 1,000 operators take to find.
#include <heddle/layout/choose.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory>
#include <random>
#include <vector>

namespace {

// Blocks of a GPT: norms, products, attention, gelu and the two sums of the residual stream; costs at random.
heddle::choice_graph gpt(int operators, int states) {
  heddle::choice_graph g;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> unit(0, 1);
  const auto costs = [&](int entries) {
    std::vector<double> all(static_cast<std::size_t>(entries));
    for (double& c : all) c = unit(random);
    return std::make_shared<const std::vector<double>>(std::move(all));
  };
  const auto add = [&](std::initializer_list<int> from) {
    const int v = static_cast<int>(g.states.size());
    g.states.push_back(states);
    g.factors.push_back({{v}, costs(states)});
    for (const int w : from) g.factors.push_back({{w, v}, costs(states * states)});
    return v;
  };
  int x = add({});
  while (static_cast<int>(g.states.size()) < operators) {
    int a = x;
    for (int k = 0; k < 4; ++k) a = add({a});
    const int m = add({x, a});
    int b = m;
    for (int k = 0; k < 4; ++k) b = add({b});
    x = add({m, b});
  }
  return g;
}

void choose(benchmark::State& state) {
  const heddle::choice_graph g = gpt(static_cast<int>(state.range(0)), 36);
  for (auto _ : state) benchmark::DoNotOptimize(heddle::cheapest_states(g).cost);
  state.counters["s/1000 operators"] =
      benchmark::Counter(static_cast<double>(g.states.size()) / 1e3,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(choose)->ArgName("operators")->Arg(100)->Arg(1000)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
